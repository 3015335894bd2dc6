"""Answers that attack the scorer. Each attack is shown to be a real one first: the library itself falls for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gym_tasks import data, failures, said, scores, sum_task

from toolrl.types import Score, Task

pytestmark = [pytest.mark.usefixtures("library"), pytest.mark.timeout(600)]

EVALUATED = [
    "string_insertion", "spiral_matrix", "binary_matrix", "n_queens",
    "countdown", "puzzle24", "simple_integration", "intermediate_integration", "polynomial_multiplication",
]  # fmt: skip
"""Generators whose scorers evaluate the answer as Python, by `eval` or by sympy."""
ENDLESS = ["9**9**9**9", "factorial(factorial(factorial(9)))", "(x+y+z+1)**999", "1<<(1<<40)"]
UNGUARDED = """
import json, sys
import reasoning_gym
for name, answers in json.load(sys.stdin).items():
    dataset = reasoning_gym.create_dataset(name, seed=0, size=1)
    for answer in answers:
        try:
            dataset.score_answer(answer, dataset[0])
        except Exception:
            pass
"""


def score_all(task: Task, answers: list[str], **options: Any) -> list[Score]:
    return scores(*(said(task, answer) for answer in answers), **{"timeout": 1, **options})


def attacks(name: str, folder: Path) -> dict[Path, str]:
    """Answers by the file that each makes where it is run."""
    marks = [folder / f"{name}-system", folder / f"{name}-open"]
    return {
        marks[0]: f"__import__('os').system('touch {marks[0]}')",
        marks[1]: f"open('{marks[1]}', 'w').write('x')",
    }


@pytest.fixture(scope="module")
def fallen(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of the files that the attacks make through the library's own scorers, without walls."""
    folder = tmp_path_factory.mktemp("unguarded")
    asked = {name: list(attacks(name, folder).values()) for name in EVALUATED}
    command = [sys.executable, "-P", "-c", UNGUARDED]
    subprocess.run(command, input=json.dumps(asked), text=True, capture_output=True, check=True, timeout=300)
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("name", EVALUATED)
def test_an_answer_that_is_code_isnt_run(name: str, tmp_path: Path, fallen: set[str]) -> None:
    wanted = attacks(name, tmp_path)
    if not {mark.name for mark in wanted} <= fallen:
        pytest.skip(f"the library doesn't fall for it any more: {name}")
    task = data(name, size=1)[0]
    found = score_all(task, [*wanted.values(), str(task.answer)], timeout=10)
    assert not list(tmp_path.iterdir())
    assert all(score.metrics["correct"] == 0.0 for score in found[:2])
    assert found[2].value == 1.0, "the next answer is scored as if nothing had been"


@pytest.mark.parametrize("name", ["countdown", "simple_integration", "n_queens"])
def test_an_answer_that_never_ends_is_ended(name: str) -> None:
    task = data(name, size=1)[0]
    found = score_all(task, [*ENDLESS, str(task.answer)])
    assert all(score.metrics["correct"] == 0.0 for score in found[:-1])
    assert "timeout" in {failure for score in found for failure in failures(score)} or name == "n_queens"
    assert found[-1].metrics["score/" + name] == 1.0 or failures(found[-1]) == {"timeout"}, "a second may not be enough"


@pytest.mark.parametrize(
    "text", ["(" * 100_000, "[" * 100_000, "-" * 100_000 + "1", "x" * 1_000_000, "1 " * 500_000, "\x00\ud800é🙂" * 1000]
)
def test_long_and_deep_answers_do_no_harm(text: str) -> None:
    for name in ("n_queens", "countdown"):
        task = data(name, size=1)[0]
        (score,) = score_all(task, [text])
        assert score.metrics["correct"] == 0.0
    assert score_all(sum_task(), [text, str(sum_task().answer)])[1].value == 1.0


def test_memory_is_limited() -> None:
    task = data("simple_integration", size=1)[0]
    found = score_all(task, ["2**(2**36)", str(task.answer)], memory_mb=256, timeout=30)
    assert found[0].metrics["correct"] == 0.0
    assert found[1].value == 1.0


def test_the_walls_hold_where_a_guard_is_lost(tmp_path: Path) -> None:
    """What a scorer would do if it ran the answer after all: the process ends at the first thing that isn't
    calculating, and the worker goes on."""
    program = f"""
import json, os, socket, subprocess
from toolrl_plugin_reasoning_gym import worker
mark = {str(tmp_path / "mark")!r}
def attack(number):
    attacks = [
        lambda: os.system("touch " + mark),
        lambda: open(mark, "w"),
        lambda: os.open(mark, os.O_CREAT),
        lambda: subprocess.run(["touch", mark]),
        lambda: os.mkdir(mark),
        lambda: socket.create_connection(("127.0.0.1", 9)),
        lambda: os.fork(),
        lambda: os.kill(os.getppid(), 9),
        lambda: os.execv("/bin/touch", ["touch", mark]),
    ]
    attacks[number]()
    return {{"score": 1.0}}
found = [worker._forked(lambda: attack(number), 5, 60.0, 512) for number in range(9)]
found.append(worker._forked(lambda: {{"score": 0.5}}, 5, 60.0, 512))
print(json.dumps(found))
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    *attacked, peaceful = json.loads(done.stdout)
    assert [reply.get("failed") for reply in attacked] == ["refused"] * 9
    assert peaceful == {"score": 0.5}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("work", "failed"),
    [
        ("while True: pass", "timeout"),
        ("import time; time.sleep(100)", "timeout"),
        ("import os; os._exit(3)", "died"),
        ("import os; os.abort()", "died"),
        ("import os; os.write(3, b'x' * 10**6)", "died"),
    ],
)
def test_a_fork_that_doesnt_answer_is_told(work: str, failed: str) -> None:
    wall = 3.0 if "sleep" in work else 60.0
    program = (
        "import json; from toolrl_plugin_reasoning_gym import worker\n"
        f"print(json.dumps(worker._forked(lambda: exec({work!r}) or {{}}, 1, {wall}, 512)))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    assert json.loads(done.stdout)["failed"] == failed
