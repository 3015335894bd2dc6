"""What the commands do with an assembled run."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolrl.assembly import _end_of_run, assemble
from toolrl.config.load import LoadedConfig
from toolrl.config.model import Config
from toolrl.config.sections import as_config, with_sections
from toolrl.errors import CheckpointError, ConfigError, DataError, ToolrlError
from toolrl.plugins.registry import Registry, load_registry
from toolrl.preflight import check_start
from toolrl.protocols import StepReport
from toolrl.rollouts.environment import Limits
from toolrl.runs.folder import RunFolder
from toolrl.types import RewardEntry
from toolrl_plugin_torch.commands.sft import check_fine_tuning
from toolrl_plugin_torch.fine_tuning.loop import find_demonstrations
from toolrl_plugin_torch.loop.job import _check_nothing_is_lost, longest_episode
from toolrl_plugin_torch.options import SftConfig, TorchOptions
from toolrl_testing.fakes import make_episode


def a_run(directory: Path, *kinds: str) -> str:
    """A run with one episode of each kind, which says the kind and is worth 1."""
    folder = RunFolder.create(directory, {}, total_steps=1)
    for step, kind in enumerate(kinds):
        folder.episode_store.add(make_episode(kind, rewards=[RewardEntry(None, "reward:r", 1.0)]))
        folder.episode_store.close_step(step, kind)
    folder.close()
    return str(directory)


def demonstrations(run: str) -> Any:
    settings = SftConfig.model_validate({"from_run": run})
    assembly: Any = SimpleNamespace(config=SimpleNamespace(seed=0))
    return find_demonstrations(assembly, settings)


def test_demonstrations_from_a_run_leave_its_evaluations_out(tmp_path: Path) -> None:
    source = demonstrations(a_run(tmp_path / "run", "eval", "train", "eval", "rollout"))
    taken = asyncio.run(source.take(0, 8))
    assert {item.ids for item in taken} == {make_episode("train").ids, make_episode("rollout").ids}


def a_config(path: str = "m", **sections: Any) -> Config:
    environments = {"short": {"max_turns": 2}, "long": {"max_turns": 5}}
    tree = {"model": {"path": path}, "environments": environments, **sections}
    return as_config(with_sections(TorchOptions).model_validate(tree))


def a_loaded(tmp_path: Path, path: str, **sections: Any) -> LoadedConfig:
    return LoadedConfig(a_config(path, run={"dir": str(tmp_path), "name": "new"}, **sections), {}, "config.yaml")


async def start(loaded: LoadedConfig, registry: Registry, **options: Any) -> None:
    async with assemble(loaded, registry, total_steps=1, **options):
        raise AssertionError("it started")


@pytest.mark.parametrize("adapter", [True, False])
def test_overwriting_a_run_keeps_the_model_that_is_to_be_loaded(tmp_path: Path, adapter: bool) -> None:
    """Also that of an adapter."""
    path = a_run(tmp_path / "new", "train")
    if adapter:
        (tmp_path / "adapter").mkdir()
        base = {"base_model_name_or_path": f"{path}/checkpoints/step-000001"}
        (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(base))
    loaded = a_loaded(tmp_path, str(tmp_path / "adapter") if adapter else path)
    with pytest.raises(ConfigError, match=r"new(/checkpoints/step-000001)?' belongs to the run"):
        check_start(loaded, load_registry(), {}, resume=False, overwrite=True)
    assert len(list(RunFolder.open(path).episodes())) == 1


def test_data_is_looked_for_before_a_folder_is_made_or_a_model_loaded(tmp_path: Path) -> None:
    data = {"train": {"use": "jsonl", "options": {"path": str(tmp_path / "none.jsonl")}}}
    loaded = a_loaded(tmp_path, "./no-model", data=data)
    registry = load_registry()
    with pytest.raises(DataError, match=r"no file matches .*none\.jsonl") as caught:
        asyncio.run(start(loaded, registry, data={"data.train": True}))
    assert caught.value.where == "data.train"
    (tmp_path / "none.jsonl").write_text("")
    with pytest.raises(DataError, match="the data set is empty"):
        asyncio.run(start(loaded, registry, data={"data.train": True}))
    with pytest.raises(ConfigError, match=r"data\.eval: needed here"):
        asyncio.run(start(loaded, registry, data={"data.eval": True}))
    with pytest.raises(ConfigError, match="there is no folder"):
        asyncio.run(start(loaded, registry, data={"data.eval": False}))


def test_observers_read_no_secret_in_what_ended_a_run() -> None:
    told: list[BaseException | None] = []
    events: Any = SimpleNamespace(run_end=told.append)
    for error in (
        ConfigError(["a: key-1", "b"], where="at key-1", hint="Not key-1."),
        ToolrlError("key-1"),
        RuntimeError("no key-1 here", 5),
    ):
        asyncio.run(_end_of_run(events, lambda text: text.replace("key-1", "${KEY}"))(type(error), error, None))
        assert told.pop() is error
        assert "key-1" not in str(error)
        assert "${KEY}" in str(error)


def test_a_run_is_not_overwritten_by_one_that_cannot_start(tmp_path: Path) -> None:
    run = a_run(tmp_path / "new", "train")
    with pytest.raises(ConfigError, match="there is no folder"):
        asyncio.run(start(a_loaded(tmp_path, "./no-model"), load_registry(), overwrite=True))
    assert len(list(RunFolder.open(run).episodes())) == 1


def test_the_run_that_demonstrations_are_of_is_not_overwritten(tmp_path: Path) -> None:
    run = a_run(tmp_path / "new", "train")
    config = a_loaded(tmp_path, "m").config
    settings = SftConfig.model_validate({"from_run": run})
    check_fine_tuning(config, settings)
    with pytest.raises(ConfigError, match=r"sft\.from_run: .* is the run that --overwrite deletes"):
        check_fine_tuning(config, settings, overwrite=True)


@pytest.mark.parametrize(("of_an_episode", "longest"), [(1000, 500), (300, 300)])
def test_the_longest_episode_is_bounded_by_turns_and_by_the_context(of_an_episode: int, longest: int) -> None:
    limits = Limits(max_turn_tokens=100, max_episode_tokens=of_an_episode)
    assert longest_episode(a_config(), limits) == longest


@pytest.mark.parametrize(
    ("save_every", "status", "lost"),
    [(2, "running", True), (3, "running", False), (0, "running", False), (0, "finished", True)],
)
@pytest.mark.parametrize("kind", ["train", "sft"])
def test_a_run_whose_checkpoints_are_gone_is_not_started_over(
    tmp_path: Path, kind: str, save_every: int, status: str, lost: bool
) -> None:
    config = {"trainer" if kind == "train" else "sft": {"save_every": save_every}}
    folder = RunFolder.create(tmp_path / "run", config, total_steps=9)
    for step in range(1, 4):
        folder.metrics.append(StepReport(step, kind, {}))
    folder.write_summary({"status": status})
    folder.close()
    again = RunFolder.create(tmp_path / "run", {**config, "seed": 1}, total_steps=9, resume=True)
    expected = pytest.raises(CheckpointError, match="no checkpoint, and the run has done 3 steps")
    with expected if lost else contextlib.nullcontext():
        _check_nothing_is_lost(again)
