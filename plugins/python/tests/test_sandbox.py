"""Programs in the sandbox: real processes, under each isolation that works here."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toolrl_plugin_python import paths
from toolrl_plugin_python.keeper_process import KeeperError, KeeperProcess
from toolrl_plugin_python.sandbox import Finished, ProgramLimits, Sandbox

PYTHON = paths.interpreter()
SMALL = ProgramLimits(wall_seconds=20, cpu_seconds=10, memory_mb=200, scratch_mb=16, file_mb=8, output_bytes=1000)


def run(sandbox: Sandbox, code: str, *arguments: str, limits: ProgramLimits = SMALL, **more: Any) -> Finished:
    """A Python program in the sandbox."""
    argv = [PYTHON, "-I", "-S", "-c", code, *arguments]
    return asyncio.run(sandbox.run(argv, limits=limits, **more))


def needs_processes(sandbox: Sandbox) -> None:
    if "a single process" in sandbox.describe():
        pytest.skip("a single process is all that can be isolated here")


def processes_with(mark: str) -> list[int]:
    """Processes of this machine that have the mark among their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_for_processes(mark: str, count: int) -> bool:
    until = time.monotonic() + 60
    while len(processes_with(mark)) != count and time.monotonic() < until:
        time.sleep(0.02)
    return len(processes_with(mark)) == count


def test_a_program_has_its_input_files_and_arguments(sandbox: Sandbox) -> None:
    code = "import sys; print(sys.argv[1], sys.stdin.read(), open('in/a.txt').read()); print('e', file=sys.stderr)"
    done = run(sandbox, code, "argument", files={"in/a.txt": b"file"}, stdin=b"input")
    assert (done.exit_code, done.signal, done.stdout, done.stderr) == (0, None, b"argument input file\n", b"e\n")
    assert not done.timed_out
    assert not done.output_cut
    assert done.seconds > 0


def test_files_are_handed_back(sandbox: Sandbox) -> None:
    code = "import os; os.mkdir('out'); open('out/b', 'wb').write(bytes(range(256)) * 5000); open('c', 'w')"
    done = run(sandbox, code, fetch=["out/b", "c", "missing", "out"])
    assert done.files == {"out/b": bytes(range(256)) * 5000, "c": b""}


def test_many_files_are_handed_back_beside_the_event_loop(sandbox: Sandbox) -> None:
    names = [f"{number}.txt" for number in range(5000)]
    argv = [PYTHON, "-I", "-S", "-c", "for n in range(5000): open(f'{n}.txt', 'w').write('x' * 100)"]
    gaps = [0.0]

    async def watch() -> None:
        while True:
            begin = time.monotonic()
            await asyncio.sleep(0.01)
            gaps.append(time.monotonic() - begin)

    async def main() -> dict[str, bytes]:
        watching = asyncio.create_task(watch())
        try:
            return (await sandbox.run(argv, limits=ProgramLimits(scratch_mb=64), fetch=names)).files
        finally:
            watching.cancel()

    assert asyncio.run(main()) == dict.fromkeys(names, b"x" * 100)
    assert max(gaps) < 2


def test_files_that_are_handed_back_lie_inside(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    code = f"import os; os.symlink({str(tmp_path / 'secret')!r}, 'link'); os.symlink('/', 'root'); os.mkfifo('fifo')"
    done = run(sandbox, code, fetch=["link", "root/etc/shadow", "fifo"])
    assert done.files == {}


@pytest.mark.parametrize(
    ("code", "exit_code", "number"),
    [
        ("raise SystemExit(7)", 7, None),
        ("import os; os.kill(os.getpid(), 9)", None, signal.SIGKILL),
        ("import os; os.abort()", None, signal.SIGABRT),
    ],
)
def test_how_it_ended(sandbox: Sandbox, code: str, exit_code: int | None, number: int | None) -> None:
    done = run(sandbox, code)
    assert (done.exit_code, done.signal) == (exit_code, number)


def test_a_program_that_is_not_there(sandbox: Sandbox) -> None:
    done = asyncio.run(sandbox.run(["/no/such/program"], limits=SMALL))
    assert done.exit_code == 127
    assert b"No such file" in done.stderr


def test_time_is_limited(sandbox: Sandbox) -> None:
    begin = time.monotonic()
    done = run(sandbox, "import time; print(1, flush=True); time.sleep(100)", limits=ProgramLimits(wall_seconds=1))
    assert done.timed_out
    assert (done.exit_code, done.signal, done.stdout) == (None, signal.SIGKILL, b"1\n")
    assert time.monotonic() - begin < 30


def test_processor_time_is_limited(sandbox: Sandbox) -> None:
    done = run(sandbox, "while True: pass", limits=ProgramLimits(wall_seconds=60, cpu_seconds=1))
    assert done.exceeded == "cpu"
    assert not done.timed_out


def test_memory_of_all_processes_is_limited(sandbox: Sandbox) -> None:
    needs_processes(sandbox)
    child = "x = bytearray(90 << 20); time.sleep(20)"
    code = f"import os, time\nfor _ in range(4):\n  if not os.fork(): {child}\ntime.sleep(20)"
    done = run(sandbox, code, limits=ProgramLimits(wall_seconds=30, memory_mb=200))
    assert done.exceeded == "memory"


def test_files_are_limited(sandbox: Sandbox) -> None:
    one = run(sandbox, "open('f', 'wb').write(bytes(12 << 20))")
    assert one.exit_code != 0
    code = (
        "import time\nfor n in range(10): open(str(n), 'wb').write(bytes(4 << 20))\ntime.sleep(3)\nprint('all written')"
    )
    many = run(sandbox, code)
    assert b"all written" not in many.stdout


def test_output_is_cut_and_a_flood_ends_it(sandbox: Sandbox) -> None:
    cut = run(sandbox, "print('x' * 3000)")
    assert (cut.exit_code, cut.output_cut, cut.stdout) == (0, True, b"x" * 1000)
    flood = run(sandbox, "while True: print('x' * 1000)")
    assert (flood.exceeded, flood.output_cut, len(flood.stdout)) == ("output", True, 1000)


def test_processes_end_with_the_program(sandbox: Sandbox) -> None:
    needs_processes(sandbox)
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    child = f"[sys.executable, '-S', '-c', 'import time; time.sleep(60)', {mark!r}]"
    code = f"import subprocess, sys; subprocess.Popen({child}, start_new_session=True); print('started')"
    done = run(sandbox, code)
    assert done.stdout == b"started\n"
    assert processes_with(mark) == []


def test_cancelling_ends_it(sandbox: Sandbox, descriptors: Callable[[], set[str]]) -> None:
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"

    async def cancelled() -> None:
        before = descriptors()
        argv = [PYTHON, "-S", "-c", "import time; time.sleep(60)", mark]
        running = asyncio.create_task(sandbox.run(argv, limits=SMALL))
        assert await asyncio.to_thread(wait_for_processes, mark, 1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert processes_with(mark) == []
        assert descriptors() == before

    asyncio.run(cancelled())


def test_the_environment_is_not_handed_on(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_RUN", "secret")
    done = run(sandbox, "import os; print(dict(os.environ))", env={"GIVEN": "given"})
    seen = eval(done.stdout)
    assert seen["GIVEN"] == "given"
    assert "SECRET_OF_THE_RUN" not in seen
    assert set(seen) <= {"GIVEN", "HOME", "LANG", "LC_CTYPE", "PATH", "PWD", "TMPDIR"}


def test_no_descriptor_is_handed_on(sandbox: Sandbox, tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        code = "import os\nfor n in range(3, 1000):\n  try: os.fstat(n); print(n)\n  except OSError: pass"
        assert run(sandbox, code).stdout == b""


def test_only_what_is_readable_is_seen(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    code = "import sys; print(open(sys.argv[1]).read())"
    hidden = run(sandbox, code, str(tmp_path / "secret"))
    assert hidden.exit_code == 1
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)  # where root runs it, the program is another user's
    readable = [Path(path) for path in paths.interpreter_paths()] + [tmp_path]
    open_one = Sandbox.detect(sandbox.settings.mode, readable=readable)  # type: ignore[arg-type]
    assert run(open_one, code, str(tmp_path / "secret")).stdout == b"secret\n"
    assert run(open_one, "import sys; open(sys.argv[1], 'w')", str(tmp_path / "new")).exit_code == 1


def test_scratch_folders_are_removed(sandbox: Sandbox, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    here = Sandbox(replace(sandbox.settings, scratch_base=str(tmp_path)), sandbox._found)
    assert run(here, "import os; os.makedirs('a/b'); open('a/b/c', 'w')").exit_code == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../up", "", ".", "nul\0", "half\ud800"])
def test_names_that_leave_the_folder_are_refused(sandbox: Sandbox, name: str) -> None:
    with pytest.raises(ValueError, match="file name"):
        run(sandbox, "", files={name: b""})
    with pytest.raises(ValueError, match="file name"):
        run(sandbox, "", fetch=[name])


def test_a_keeper_that_dies_is_an_error_and_not_a_hang(sandbox: Sandbox) -> None:
    async def killed() -> None:
        await sandbox.start()
        try:
            keeper = sandbox._keeper
            assert isinstance(keeper, KeeperProcess)
            argv = [PYTHON, "-S", "-c", "import time; time.sleep(60)"]
            running = asyncio.create_task(sandbox.run(argv, limits=SMALL))
            await asyncio.sleep(0.3)
            assert keeper._process is not None
            keeper._process.kill()
            with pytest.raises(KeeperError, match="isn't there any more"):
                await running
            # The next run makes a keeper of its own.
            assert (await sandbox.run([PYTHON, "-S", "-c", "print(1)"], limits=SMALL)).stdout == b"1\n"
        finally:
            await sandbox.stop()

    asyncio.run(killed())


_RUN = """
import asyncio, sys
from pathlib import Path
from toolrl_plugin_python.sandbox import ProgramLimits, Sandbox

async def main():
    sandbox = Sandbox.detect(sys.argv[1], readable=[Path("/usr"), *map(Path, ("/bin", "/lib64"))])
    command = "sleep {mark} & sleep {mark}".format(mark=sys.argv[2])
    await sandbox.run(["/bin/sh", "-c", command], limits=ProgramLimits(wall_seconds=100))

asyncio.run(main())
"""


def test_a_program_does_not_outlive_a_run_that_is_killed(sandbox: Sandbox, isolation: str) -> None:
    needs_processes(sandbox)
    mark = f"90.{os.getpid()}{time.monotonic_ns() % 10**6}"
    run = subprocess.Popen([sys.executable, "-c", _RUN, isolation, mark])
    try:
        assert wait_for_processes(mark, 3)  # the run names it, too
    finally:
        run.kill()
        run.wait()
    assert wait_for_processes(mark, 0)
