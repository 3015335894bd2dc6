"""A run folder with broken files: the report says what it leaves out, and no message is a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from toolrl.cli.main import main
from toolrl.runs.folder import RunFolder

MakeRun = Callable[..., RunFolder]


def fill(file: Path) -> None:
    file.write_bytes(b"\x00\xff\xfe nonsense\n{}\n[1]\n")


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x91
    file.write_bytes(content)


def cut(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("broken", [cut, flip, fill])
@pytest.mark.parametrize("name", ["tokens.jsonl", "episodes/000002-train.jsonl.gz"])
def test_a_report_leaves_out_what_it_can_not_read(
    make_run: MakeRun, name: str, broken: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_run()
    broken(folder.directory / name)
    assert main(["report", str(folder.directory)]) == 0
    assert folder.report_path.exists()
    # A line that is cut at the end is one that a kill tore.
    assert (f"left out of the report: {folder.directory / name}" in caplog.text) == (
        name != "tokens.jsonl" or broken is fill
    )


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "summary.json", "tokens.jsonl", "plugins.json", "episodes/000002-train.jsonl"]
)
@pytest.mark.parametrize(
    "content", [b"[" * 200_000, b'{"a":' * 200_000, b'{"step": 1' + b"0" * 400 + b', "kind": "train"}\n[1]\n', b"[1]"]
)
def test_files_from_elsewhere_are_errors_for_people(
    name: str, content: bytes, make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run().directory
    (run / name).write_bytes(content + b"\n")
    main(["report", str(run)])
    assert "Traceback" not in capsys.readouterr().err
