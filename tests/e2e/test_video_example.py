"""The example with videos: an episode through all four tools, and all stages from videos to report with a few steps."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

for name in ("torch", "transformers", "PIL", "toolrl_plugin_qwen", "toolrl_plugin_math", "toolrl_plugin_transformers"):
    pytest.importorskip(name)
pytest.importorskip("av", reason="needs PyAV: pip install av")

ORDER = ("extract_frames", "detect_objects", "caption_frame", "check_answer")
EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "video"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder in which the tools' package is installed; empty where it is installed anyway."""
    if any(point.name == "video" for point in importlib.metadata.entry_points(group="toolrl.plugins")):
        return ""
    if importlib.util.find_spec("hatchling") is None or importlib.util.find_spec("pip") is None:
        pytest.skip("hatchling and pip install the example's tools: pip install hatchling pip")
    target = tmp_path_factory.mktemp("site")
    flags = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *flags, "--target", str(target), str(EXAMPLE / "tools")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return str(target)


@pytest.fixture(scope="module")
def world(site: str, run_script: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos and models at the places that the configs name; the models that look are untrained."""
    folder = tmp_path_factory.mktemp("world")
    few = ("--train", "1", "--test", "1", "--demos", "2")
    run_script(folder, EXAMPLE / "make_data.py", "runs/video/tasks", *few, path=site)
    run_script(folder, EXAMPLE / "make_viewers.py", "runs/video/viewers", "--steps", "0", path=site)
    run_script(folder, EXAMPLE / "make_model.py", "runs/video/warmup", path=site)
    return folder


def call(tool: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


def test_episodes_go_through_all_four_tools(
    site: str, world: Path, scripted: Any, plugin_site: Any, run_script: Any
) -> None:
    """With the config's own tools, parser, chat format and reward: what the model says alone is given."""
    rows = [json.loads(line) for line in (world / "runs/video/tasks/train.jsonl").read_text().splitlines()]
    said = rows[0]["answer"]
    seeing = (
        call("detect_objects", frame=0) + call("caption_frame", frame=1),
        call("check_answer", answer=said),
        said,
    )
    extract = {"text": call("extract_frames", seconds=[0, 2.5])}
    scripted(world, extract, *({"text": text, "media": 2} for text in seeing))
    arguments = ["rollout", EXAMPLE / "grpo.yaml", "--tasks", len(rows), "--episodes", "1", "--overwrite"]
    settings = ["engine=script", "rollout.max_turn_tokens=200", "rollout.max_episode_tokens=500"]
    sets = [part for setting in settings for part in ("--set", setting)]
    path = os.pathsep.join(filter(None, [site, str(plugin_site.folder)]))
    run_script(world, "-m", "toolrl", *arguments, *sets, path=path)

    from toolrl.runs.folder import RunFolder

    episodes = [item.episode for item in RunFolder.open(world / "runs/video/grpo-rollout").episodes()]
    assert len(episodes) == len(rows)
    assert {episode.task.answer == said for episode in episodes} == {True, False}
    for episode in episodes:
        assert episode.failure is None
        records = list(episode.calls)
        assert [record.call.name for record in records] == list(ORDER)
        assert [record.result.error for record in records] == [None] * 4
        assert records[0].result.text == "frame 0 at 0.0 s: <image>\nframe 1 at 2.5 s: <image>"
        assert len(episode.media) == 2
        right = episode.task.answer == said
        assert records[3].result.text == ("That is right." if right else "That is wrong.")
        assert episode.reward == (2.0 if right else -0.05)
        assert {entry.source for entry in episode.rewards} == {"step:check_answer", "tool:check_answer", "reward:exact"}


def test_the_example_runs(site: str, run_script: Any, tmp_path: Path) -> None:
    shorter = ["--videos", "8", "--demos", "24", "--viewer-steps", "8", "--sft-steps", "3", "--steps", "2"]
    printed = run_script(tmp_path, EXAMPLE / "example.py", "--dir", "runs", *shorter, path=site)
    assert "before GRPO" in printed
    assert "after GRPO" in printed
    assert (tmp_path / "runs" / "grpo" / "report.html").is_file()
