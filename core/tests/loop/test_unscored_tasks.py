"""Tasks that no reward can score, found before a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from toolrl.errors import DataError, RewardError
from toolrl.loop.data import CheckedTasks, GoodTasks
from toolrl.plugins.registry import load_registry
from toolrl.preflight import task_checks
from toolrl.python_objects import take_objects
from toolrl.types import Message, Score, Task


class Numbers:
    """Scores tasks whose answer is a number."""

    def check_task(self, task: Task) -> None:
        if task.answer is None:
            raise RewardError("it has no answer", hint="Give it one.")
        float(task.answer)

    def score(self, episode: Any) -> Score:
        return Score(1.0)


def tasks(*answers: Any, environments: tuple[str, ...] = ("default",)) -> CheckedTasks:
    """Tasks of the environments in turn; the first environment alone has the reward."""
    given = [
        Task(str(index), (Message("user", "?"),), answer=answer, environment=environments[index % len(environments)])
        for index, answer in enumerate(answers)
    ]
    rewards: dict[str, Any] = {name: {} for name in environments}
    rewards[environments[0]] = {"numbers": Numbers()}
    return CheckedTasks(given, dict.fromkeys(environments), "data.train", rewards)


def test_rows_that_cannot_be_scored_are_bad() -> None:
    found = tasks(1, None, "2", "x").bad()
    assert list(found) == [1, 3]
    assert str(found[1]) == (
        "data.train, row 1 (counted from 0): the reward 'numbers' can't score it: it has no answer\n  Give it one."
    )
    assert "ValueError" in found[3].message


def test_they_are_left_out_with_the_bad_ones() -> None:
    good = GoodTasks(tasks(1, None, 3), "data.train")
    assert [good[index].answer for index in range(len(good))] == [1, 3]


def test_the_rewards_of_the_own_environment_count() -> None:
    assert list(tasks(None, None, 1, None, environments=("default", "chat")).bad()) == [0]


def test_the_start_of_a_run_warns(caplog: pytest.LogCaptureFixture) -> None:
    tasks(1, None, 2).check_first()
    assert "data.train: 1 of the first 3 rows are bad" in caplog.text
    assert "row 1" in caplog.text


def test_it_stops_if_nothing_can_be_scored() -> None:
    with pytest.raises(DataError, match="2 of the first 2 rows are bad"):
        tasks(None, None).check_first()


def test_an_object_in_a_config_checks_tasks() -> None:
    reward = Numbers()
    given = {"environments": {"default": {"rewards": [reward, lambda episode: 1.0]}}}
    tree, registry = take_objects(given, load_registry())
    uses = [SimpleNamespace(use=name, options={}, name=None) for name in tree["environments"]["default"]["rewards"]]
    config: Any = SimpleNamespace(environments={"default": SimpleNamespace(rewards=uses)})
    assert task_checks(registry, config) == {"default": {uses[0].use: reward}}
