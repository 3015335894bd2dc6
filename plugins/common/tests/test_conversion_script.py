"""Start scripts are read without being run."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolrl.errors import ConfigError
from toolrl_common.conversion.script import UNKNOWN, read_script


def started(text: str) -> list[str]:
    """The words behind `run` in the first command that has it."""
    return next(words[words.index("run") + 1 :] for words in read_script(text, "scripts/run.sh") if "run" in words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python run a=1 'b=x y' \"c=z\"", ["a=1", "b=x y", "c=z"]),
        ('X=1\nY="$X/2"\nrun a=$Y b=${X}', ["a=1/2", "b=1"]),
        ("X=${X:-d}; export Y=e\nrun a=$X/${Y:-f} b=${Z:-$X} c=$HOME/x", ["a=d/e", "b=d", "c=${HOME}/x"]),
        ('A=(x=1 # one\n  y=2)\nA+=(z=3)\nrun "${A[@]}" $@', ["x=1", "y=2", "z=3"]),
        ("run a=$(pwd)/x b=`pwd` > log 2>&1 &\nother c=1", ["a=./x", "b=."]),
        ("# run no=1\nnohup run yes=1 # no=2", ["yes=1"]),
        ("if true; then\n  run \\\n a=1 \\\n b=2\nfi", ["a=1", "b=2"]),
        ("run a='$HOME' b=\\$X c=\"\\\"q\\\"\"", ["a=$HOME", "b=$X", 'c="q"']),
        ('run a="${data.n}" b=[1,2]', ["a=${data.n}", "b=[1,2]"]),
        ("F=\"['$A', '$B']\"\nrun f=\"$F\" g='[\"x\"]'", ["f=['${A}', '${B}']", 'g=["x"]']),
        ("N=\nrun a=$N", ["a="]),
        ('A="x=1 \n y=2"\nB=$A\nrun $A "$A" ${B} $NONE', ["x=1", "y=2", "x=1 \n y=2", "x=1", "y=2", "${NONE}"]),
        ("run a=1 | tee x; run b=2", ["a=1"]),
        ("P=$((1024 * 2))\nrun a=$P b=$(((P + 1) * -2)) c=$(( $P / 3 ))x d=$((-7/2))",
         ["a=2048", "b=-4098", "c=682x", "d=-3"]),
    ],
)  # fmt: skip
def test_words_of_a_command(text: str, words: list[str]) -> None:
    assert started(text) == words


@pytest.mark.parametrize(
    "text", ["$((1 / 0))", "$((N + 1))", "$((1 +))", "$((2 ** 3))", "$(())", "$((1.5))",
             "$(dirname $0)", "$(date +%s)", "`date`", "${X/a/b}"]
)  # fmt: skip
def test_what_can_not_be_known_is_unknown(text: str) -> None:
    assert started(f"run a={text}") == [f"a={UNKNOWN}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run a='x", "a ' isn't closed"),
        ('\nrun a="x', "a \" isn't closed .near line 2"),
        ("A=(x\n", "an array isn't closed"),
        ("run ${A", "isn't closed"),
        ("run " + "${a:-" * 5000 + "}" * 5000, "isn't closed"),
    ],
)
def test_a_script_that_can_not_be_read(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list(read_script(text, "run.sh"))


@given(st.text("ab=1'\"$(){}[]@\\ \n#;|&<>`:-+*/.", max_size=60))
@example("run ${a:-${b:-'}")
@example("\\")
def test_any_script_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        list(read_script(f"{text}\nrun {text}", "run.sh"))
