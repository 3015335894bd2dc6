"""Names that no episode of a run had to do with are told, once and with their place."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from toolrl.config.model import Config
from toolrl.loop.unused_names import UnusedNames
from toolrl.protocols import StepReport
from toolrl.types import Episode, Message, Task
from toolrl_testing.fakes import one_trajectory


def config(**environments: Any) -> Config:
    return Config.model_validate({"model": {"path": "x"}, "environments": environments})


def episode(environment: str, *roles: str) -> Episode:
    task = Task("t", (Message("user", "?"),))
    whole = one_trajectory(
        id="t#0", task=task, environment=environment, group="train-1/0", index=0, ids=(1, 2), loss_mask=(0, 1),
        logprobs=(0.0, -1.0), weight_versions=(-1, 0), prompt_length=1, turns=(), messages=(), stop_reason="final",
    )  # fmt: skip
    return replace(whole, trajectories=tuple(replace(whole.main, role=role) for role in roles))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_role_that_nobody_has_is_told_after_the_first_step(caplog: pytest.LogCaptureFixture) -> None:
    observer = UnusedNames(config(default={"untrained_roles": ["user", "usr"]}, other={"untrained_roles": ["judge"]}))
    for step in (1, 2, 3):
        observer.toolrl_episode_end(episode("default", "agent", "user"))
        observer.toolrl_step_end(StepReport(step, "train", {}))
    (line,) = warnings(caplog)
    assert "environments.default.untrained_roles" in line
    assert "'usr'" in line
    assert "agent, user" in line


@pytest.mark.parametrize(
    ("error", "start_step", "told"), [(None, 0, True), (RuntimeError(), 0, False), (None, 3, False)]
)
def test_an_environment_without_episodes_is_told_at_the_end(
    caplog: pytest.LogCaptureFixture, error: Any, start_step: int, told: bool
) -> None:
    observer = UnusedNames(config(default={}, other={}))
    observer.toolrl_run_start(SimpleNamespace(start_step=start_step))
    observer.toolrl_episode_end(episode("default", "agent"))
    observer.toolrl_step_end(StepReport(1, "train", {}))
    assert warnings(caplog) == []
    observer.toolrl_run_end(error)
    assert [line.startswith("environments.other: no episode") for line in warnings(caplog)] == [True] * told
