"""Episodes that processes play: what they are given, how they end, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from toolrl.types import Message, Task
from toolrl_plugin_gateway.command_harness import CommandHarness
from toolrl_plugin_gateway.options import CommandOptions
from toolrl_testing.fakes import ScriptedEngine, make_build_context

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="children that left their group are found on Linux")
AGENT = '''
import json, os, subprocess, sys, time, urllib.request

def ask(path="/chat/completions", key=os.environ["OPENAI_API_KEY"], **body):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode())
    request.add_header("Authorization", "Bearer " + key)
    with urllib.request.urlopen(request) as response:
        return json.load(response)

def say(messages):
    return ask(model=os.environ["OPENAI_MODEL"], messages=messages)["choices"][0]["message"]["content"]

def plain(task):
    print(say(task["messages"]))

def report(task):
    plain(task)
    given = json.load(open(sys.argv[3]))
    seen = {"task": task, "given": given, "env": dict(os.environ), "argv": sys.argv[2:], "files": sorted(os.listdir())}
    seen["children"] = subprocess.check_output(["sh", "-c", "env; cat; cat /dev/stdin $TOOLRL_TASK"], text=True)
    open(os.environ["SEEN"], "w").write(json.dumps(seen))
    ask("/reward", task["reward_key"], reward=0.25)

def crash(task):
    plain(task)
    sys.exit("the agent is broken")

def hang(task):
    plain(task)
    wait(task)

def wait(task):
    """With children that ignore SIGTERM; one left the process group."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    pids = [subprocess.Popen([sys.executable, "-c", code], start_new_session=new).pid for new in (True, False)]
    open("pids.tmp", "w").write(json.dumps([os.getpid(), *pids]))
    os.rename("pids.tmp", os.environ["PIDS"])
    time.sleep(600)

globals()[sys.argv[1]](json.load(sys.stdin))
'''
TASK = Task("t", (Message("user", "What is 6 * 7?"),), answer="secret", extra={"solution": "secret"})


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "agent.py"
    file.write_text(AGENT)
    return file


def read(file: str) -> str:
    return Path(file).read_text()


def ends_with(agent: Path, line: str) -> None:
    agent.write_text(f"{AGENT.rpartition('globals')[0]}\nplain(json.load(sys.stdin))\n{line}")


def harness(what: str, tmp_path: Path, **options: Any) -> CommandHarness:
    context = make_build_context("command", run_dir=tmp_path)
    return CommandHarness(CommandOptions(command=f"python agent.py {what}", **options), context)


async def played(rig: Any, harness: Any, **options: Any) -> Any:
    (episode,) = await rig.episodes(harness, ScriptedEngine(lambda prompt: "hello"), task=TASK, **options)
    return episode


async def test_a_process_gets_the_task_and_the_gateway_and_no_secrets(
    rig: Any, agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUN_SECRET", "hunter2")
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "tool.txt").touch()
    own = {"env": {"MINE": "yes", "SEEN": f"{tmp_path}/seen.json"}, "folder": "start", "answer": "stdout"}
    own["agent_reward"] = True
    episode = await played(rig, harness('report "{prompt}" {task}', tmp_path, **own))

    assert (episode.failure, episode.answer, episode.reward) == (None, "hello", 0.25)
    seen = json.loads(read(f"{tmp_path}/seen.json"))
    key = seen["task"].pop("reward_key")
    assert key not in seen["children"], "what the agent runs for the model could set its reward"
    assert seen["env"]["OPENAI_API_KEY"] in seen["children"]
    assert seen["task"] == {"id": "t", "messages": [{"role": "user", "content": "What is 6 * 7?"}]}
    assert seen["argv"][0] == "What is 6 * 7?"
    assert seen["given"] == seen["task"]
    assert seen["files"] == ["tool.txt"]
    assert seen["env"]["MINE"] == "yes"
    assert seen["env"]["OPENAI_BASE_URL"] == f"{seen['env']['ANTHROPIC_BASE_URL']}/v1"
    assert "hunter2" not in json.dumps(seen)


async def test_a_prompt_with_a_placeholder_stays_as_it_is(rig: Any, agent: Path, tmp_path: Path) -> None:
    ends_with(agent, "print(sys.argv[1])")
    task = Task("t", (Message("user", "{task} of \ud800"),))
    command = harness('"{prompt}"', tmp_path, answer="stdout")
    (episode,) = await rig.episodes(command, ScriptedEngine(lambda prompt: "hello"), task=task)
    assert (episode.failure, episode.answer) == (None, "hello\n{task} of ?")


@pytest.mark.parametrize(
    ("answer", "line", "found"),
    [
        ("stdout", "print('43')", "hello\n43"),
        ("last_line", "print('Provider List: https://x\\n\\n43\\n\\n')", "43"),
        ("last_line", "", "hello"),
        ("file", "open(os.environ['TOOLRL_ANSWER'], 'w').write(' 43\\nor so\\n')", "43\nor so"),
        ("file", "", None),
        ("file", "os.mkfifo(os.environ['TOOLRL_ANSWER'])", None),
        ("file", "os.symlink('/etc/hostname', os.environ['TOOLRL_ANSWER'])", None),
        (None, "print('43')", None),
    ],
)
async def test_what_libraries_print_need_not_be_the_answer(
    rig: Any, agent: Path, tmp_path: Path, answer: str, line: str, found: str | None
) -> None:
    ends_with(agent, line)
    episode = await played(rig, harness("plain", tmp_path, answer=answer))
    assert episode.answer == found
    if answer == "file" and found is None:
        assert "TOOLRL_ANSWER" in episode.failure.message


async def test_the_models_key_sets_no_reward(rig: Any, agent: Path, tmp_path: Path) -> None:
    """Nor is there another one unless the config asks for it."""
    ends_with(agent, "assert 'reward_key' not in open(sys.argv[2]).read()\nask('/reward', reward=1e6)")
    episode = await played(rig, harness("plain {task}", tmp_path))
    assert "403" in episode.failure.message
    with pytest.raises(ValueError, match="agent_reward"):
        CommandOptions(command="x", agent_reward=True, stdin="prompt")


async def test_stdout_may_be_the_answer_and_folders_are_deleted(
    rig: Any, agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "made"))
    (tmp_path / "made").mkdir()
    episode = await played(rig, harness("plain", tmp_path, answer="stdout"))
    assert (episode.failure, episode.answer, episode.stop_reason) == (None, "hello", "final")
    assert not list((tmp_path / "made").iterdir())


async def test_a_process_that_crashes_fails_the_episode_with_its_last_words(
    rig: Any, agent: Path, tmp_path: Path
) -> None:
    failed = await played(rig, harness("crash", tmp_path))
    scored = await played(rig, harness("crash", tmp_path, crash_reward=-0.5))

    assert failed.failure.fault == "harness"
    assert "ended with status 1:\nthe agent is broken" in failed.failure.message
    assert (scored.failure, scored.reward) == (None, -0.5)


async def test_a_program_need_not_read_its_task(rig: Any, agent: Path, tmp_path: Path) -> None:
    """Which is larger than what a pipe holds."""
    task = Task("t", (Message("user", "x" * 500_000),))
    (tmp_path / "agent.py").write_text("pass")
    (episode,) = await rig.episodes(harness("", tmp_path, agent_reward=True), ScriptedEngine([]), task=task)
    assert "without asking the model" in episode.failure.message


@needs_linux
@pytest.mark.parametrize("how", ["timeout", "cancelled", "killed"])
async def test_a_process_that_hangs_is_ended_with_all_its_children(
    rig: Any, agent: Path, tmp_path: Path, how: str
) -> None:
    file = tmp_path / "pids.json"
    hanging = harness("hang", tmp_path, env={"PIDS": str(file)}, time_limit=4 if how == "timeout" else 60)
    playing = asyncio.create_task(played(rig, hanging))
    await rig.until(file.exists)
    pids = json.loads(file.read_text())
    if how == "cancelled":
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
    else:
        if how == "killed":
            os.kill(pids[0], signal.SIGKILL)
        episode = await playing
        assert episode.stop_reason == ("timeout" if how == "timeout" else "error")
        assert how == "timeout" or "ended with status 137" in episode.failure.message
    assert not any(psutil.pid_exists(pid) for pid in pids)


@needs_linux
async def test_a_run_that_is_killed_takes_its_processes_along(rig: Any, agent: Path, tmp_path: Path) -> None:
    file = tmp_path / "pids.json"
    run = f"""
import asyncio, sys
from pathlib import Path
from toolrl_plugin_gateway.command_harness import _ended
env = {{"PIDS": {str(file)!r}, "OPENAI_MODEL": "", "OPENAI_BASE_URL": "", "OPENAI_API_KEY": ""}}
asyncio.run(_ended([sys.executable, "-c", sys.argv[1], "wait"], Path("task.json"), Path("."), env))
"""
    (tmp_path / "task.json").write_text('{"messages": []}')
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", run, AGENT)
    await rig.until(file.exists)
    process.kill()
    await process.wait()
    pids = json.loads(file.read_text())
    await rig.until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


async def test_no_more_processes_run_at_once_than_the_config_says(rig: Any, agent: Path, tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda prompt: "hello", latency=0.1)
    episodes = await rig.episodes(harness("plain", tmp_path, processes=2), engine, episodes=5)
    assert [it.failure for it in episodes] == [None] * 5
    assert engine.most_at_once <= 2
