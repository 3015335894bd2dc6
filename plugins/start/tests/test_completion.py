"""`toolrl completion` in real shells: commands, options, runs, names of components."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from toolrl.cli.main import main

BASH = """
source ./script
reply() {{ COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _shtab_toolrl; echo "${{COMPREPLY[@]}}"; }}
reply
"""
ZSH = """
zmodload zsh/zpty
print -r -- 'PS1=; fpath=($PWD $fpath); autoload -Uz compinit; compinit -D -u; print rea""dy' > rc.zsh
zpty shell zsh -f -i
zpty -w shell 'source ./rc.zsh'
zpty -r shell seen '*ready*'
sleep 1  # a tab that waits for the prompt is taken literally
zpty -n -w shell "{line}"$'\\t'
zpty -r shell seen '*{wanted}*' && print -r -- "$seen"
"""
LINES = {
    "toolrl rep": "report",
    "toolrl train --resu": "--resume",
    "toolrl report runs/gr": "runs/grpo",
    "toolrl parse --parser herm": "hermes",
    "toolrl config sche": "schema",
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and a script for each shell."""
    folder = tmp_path_factory.mktemp("shell")
    (folder / "runs" / "grpo").mkdir(parents=True)
    (folder / "runs" / "grpo" / "config.yaml").touch()
    return folder


def completed(shell: str, line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a shell makes of a line at its end."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} isn't installed")
    assert main(["completion", shell]) == 0
    (folder / ("_toolrl" if shell == "zsh" else "script")).write_text(capsys.readouterr().out)
    program = {
        "bash": BASH.format(line=line),
        "zsh": ZSH.format(line=line, wanted=LINES[line].removeprefix("--")),
        "fish": f"source ./script; complete -C '{line}'",
    }[shell]
    words = [shell, "-f", "-c"] if shell == "zsh" else [shell, "-c"]
    return subprocess.run([*words, program], cwd=folder, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes(shell: str, line: str, scripts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert LINES[line] in completed(shell, line, scripts, capsys)
