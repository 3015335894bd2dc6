"""Rollout dumps in verl's form."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from toolrl.protocols import StepReport
from toolrl.types import CallRecord, EpisodeFailure, RewardEntry, ToolCall, ToolResult
from toolrl_plugin_verl.dump import VerlDump
from toolrl_plugin_verl.options import VerlDumpOptions
from toolrl_testing import FakeChatFormat, make_build_context, make_episode, make_task


class Tokenizer:
    """Decodes by the fake chat format."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return FakeChatFormat().decode(ids).text


def dump(folder: Path, **options: Any) -> tuple[VerlDump, Any]:
    run = SimpleNamespace(directory=folder / "run")
    return VerlDump(VerlDumpOptions(**options), make_build_context("verl_dump", tokenizer=Tokenizer())), run


def episode(text: str, group: str, index: int, **fields: Any) -> Any:
    task = make_task("2 + 2?", id=group, answer="4")
    return make_episode(text, task=task, group=group, id=f"{group}#{index}", index=index, **fields)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_one_file_a_step_one_line_an_episode(tmp_path: Path) -> None:
    observer, run = dump(tmp_path, rollout_data_dir=str(tmp_path / "dumps"))
    calls = {0: [CallRecord(ToolCall("calc", {}), ToolResult("vier"))]}
    task = make_task("2 + 2?", id="b", answer="4")
    metrics = {"verl/acc": 1.0, "tool/calc/tool_reward": 0.5, "correct": 1.0}
    with_tool = make_episode(
        "calc", "é 4", task=task, calls=calls, group="b", id="b#0", index=0,
        rewards=[RewardEntry(None, "reward:verl", 0.75)], metrics=metrics,
    )  # fmt: skip
    failed = episode("x", "a", 2, failure=EpisodeFailure("tool", "t", "m"), stop_reason="error")
    for one in (episode("no", "a", 1), with_tool, episode("4", "a", 0), failed):
        observer.toolrl_episode_end(run, one)
    observer.toolrl_step_end(run, StepReport(3, "train", {}))
    found = lines(tmp_path / "dumps" / "3.jsonl")
    assert [line["output"] for line in found][:2] == ["4", "no"]
    assert list(found[2])[:5] == ["input", "output", "gts", "score", "step"]
    assert "2 + 2?" in found[2]["input"]
    assert found[2]["output"].startswith("calc")
    assert "vier" in found[2]["output"]
    assert (found[2]["gts"], found[2]["score"], found[2]["step"]) == ("4", 0.75, 3)
    assert (found[2]["acc"], found[2]["tool/calc/tool_reward"]) == (1.0, 0.5)
    assert len(found) == 3
    assert [path.name for path in (tmp_path / "dumps").iterdir()] == ["3.jsonl"]


def test_evaluations_have_a_folder_of_their_own_or_none(tmp_path: Path) -> None:
    observer, run = dump(tmp_path)
    for kind in ("eval", "train"):
        observer.toolrl_episode_end(run, episode("4", "a", 0))
        observer.toolrl_step_end(run, StepReport(1, kind, {}))
    assert len(lines(tmp_path / "run" / "rollout_data" / "1.jsonl")) == 1
    observer, run = dump(tmp_path, validation_data_dir=str(tmp_path / "val"))
    observer.toolrl_episode_end(run, episode("4", "a", 0))
    observer.toolrl_step_end(run, StepReport(5, "eval", {}))
    assert len(lines(tmp_path / "val" / "5.jsonl")) == 1
