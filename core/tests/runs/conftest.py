"""Episodes and runs for the tests of this folder: made by rule, so that a test can say what is in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolrl.protocols import StepReport
from toolrl.runs.folder import RunFolder
from toolrl.runs.recorder import RunRecorder
from toolrl.types import (
    CallRecord,
    Episode,
    EpisodeFailure,
    Message,
    RewardEntry,
    Segment,
    Task,
    ToolCall,
    ToolResult,
    Turn,
)
from toolrl_testing.fakes import one_trajectory

CONFIG: dict[str, Any] = {"model": {"path": "models/tiny"}, "run": {"name": "r"}, "trainer": {"steps": 4}}


def build_episode(
    index: int = 0,
    *,
    correct: bool = True,
    failed: bool = False,
    question: str = "What is 2 + 3?",
    said: str = "<tool_call>add</tool_call>",
    result: str = "5",
    round_id: str = "train-1",
) -> Episode:
    """Two turns: a call with its result, then an answer. 4 prompt, 3 sampled, 2 tool and 2 sampled tokens."""
    call = ToolCall("add", {"a": 2, "b": 3}, id="c0", span=(0, len(said)), tokens=(0, 3), raw=said)
    record = CallRecord(call, ToolResult(result, metrics={"x": 1.0}), started=0.5, seconds=0.25)
    answer = "5" if correct else "6"
    turns = (
        Turn(0, (Segment("model", said, (4, 7)),), (call,), (record,), "stop", said, None, 0.4, 0.25),
        Turn(1, (Segment("model", answer, (9, 11)),), (), (), "stop", answer, "thinking", 0.1),
    )
    messages = (
        Message("user", question),
        Message("assistant", said, tool_calls=(call,)),
        Message("tool", result, tool_call_id="c0", name="add"),
        Message("assistant", answer),
    )
    return one_trajectory(
        id=f"t{index}#{index}",
        task=Task(f"t{index}", messages[:1], answer="5", extra={"level": index}),
        environment="default",
        group=f"{round_id}/0/t{index}",
        index=index,
        ids=(1, 2, 3, 4, 10, 11, 12, 5, 6, 13, 14),
        loss_mask=(0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1),
        logprobs=(0.0, 0.0, 0.0, 0.0, -0.1, -0.2, -0.3, 0.0, 0.0, -1.5, -0.01),
        weight_versions=(-1, -1, -1, -1, 0, 0, 0, -1, -1, 0, 0),
        prompt_length=4,
        turns=turns,
        messages=messages,
        stop_reason="error" if failed else "answer",
        answer=None if failed else answer,
        rewards=(RewardEntry(None, "reward:math", float(correct)), RewardEntry(0, "step:add", 0.5, 0.2)),
        metrics={"correct": float(correct)},
        failure=EpisodeFailure("tool", "add", "no connection", "Traceback …") if failed else None,
        seconds=0.9,
    )


@pytest.fixture(scope="session")
def make_episode() -> Callable[..., Episode]:
    return build_episode


def build_run(
    directory: Path, steps: int = 3, *, error: BaseException | None = None, **episode: Any
) -> RunFolder:
    """A run of some training steps with two episodes each and an evaluation at the start and the end."""
    folder = RunFolder.create(directory, CONFIG, total_steps=steps, plugins={"calculator": "0.1.0"})
    recorder = RunRecorder(folder, token_pieces=lambda ids: [f"‹{token}›" for token in ids])
    recorder.toolrl_run_start(folder)

    def evaluate(step: int) -> None:
        recorder.toolrl_episode_end(folder, build_episode(9, round_id=f"eval-{step}", **episode))
        recorder.toolrl_step_end(folder, StepReport(step, "eval", {"accuracy": 0.1 + step / 10}))

    evaluate(0)
    for step in range(1, steps + 1):
        for index in range(2):
            one = build_episode(index, correct=index == 0, round_id=f"train-{step}", **episode)
            recorder.toolrl_episode_end(folder, one)
        metrics = {"reward/mean": step / 10, "accuracy": 0.5, "loss": float("nan"), "time/step": 1.0}
        recorder.toolrl_step_end(folder, StepReport(step, "train", metrics))
    evaluate(steps)
    recorder.toolrl_run_end(folder, error)
    return folder


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunFolder]:
    return lambda name="r", *given, **more: build_run(tmp_path / name, *given, **more)
