"""Checks before a model is loaded: every tool and reward is built, and the first rows are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolrl.config.load import LoadedConfig, check_config
from toolrl.early_parts import check_before_load, check_parts
from toolrl.errors import ConfigError, DataError
from toolrl.plugins.registry import Registry, load_registry
from toolrl.python_objects import take_objects
from toolrl.tools import tool
from toolrl.types import Episode

ROWS = [{"prompt": "2+2", "answer": "4"}]
DATA = {"data.train": True, "data.eval": False}
NO_ROWS = [{"question": "2+2", "answer": "4"}]


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(name="bare")
def bare(a: int) -> int:
    return a


def needs_tokenizer(options: Any, context: Any) -> Any:
    assert context.tokenizer.eos_token_id is not None
    return [add]


def raises(options: Any, context: Any) -> Any:
    raise ImportError("no module named 'mine'")


def loaded(
    tmp_path: Path, environment: dict[str, Any], data: dict[str, Any] | None = None
) -> tuple[LoadedConfig, Registry]:
    tree = {
        "model": {"path": "tiny"},
        "environments": {"default": environment},
        "run": {"dir": str(tmp_path)},
        "data": data or {},
    }
    pytest.importorskip("toolrl_plugin_torch", reason="the sections of the trainer")
    tree, registry = take_objects(tree, load_registry())
    return check_config(tree, [], source="run", registry=registry), registry


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    config = loaded(tmp_path, {"tools": [raises, add, add]}, {"train": NO_ROWS, "eval": NO_ROWS})
    with pytest.raises(ConfigError) as error:
        check_before_load(*config, DATA)
    said = error.value.problems
    places = ("environments.default.tools[0]: ", "environments.default.tools: ", "data.train: ", "data.eval: ")
    assert [place for place in places if any(line.startswith(place) for line in said)] == list(places)
    assert "no module named 'mine'" in said[0]


def test_a_single_bad_data_set_keeps_its_error(tmp_path: Path) -> None:
    config = loaded(tmp_path, {}, {"train": NO_ROWS, "eval": ROWS})
    with pytest.raises(DataError, match="data.train"):
        check_before_load(*config, DATA)


def test_good_parts_and_rows_pass(tmp_path: Path) -> None:
    config = loaded(tmp_path, {"tools": [add]}, {"train": ROWS})
    datasets, notes = check_before_load(*config, DATA)
    assert list(datasets) == ["data.train"]
    assert notes == []


def test_what_needs_the_model_gets_a_note(tmp_path: Path) -> None:
    report = check_parts(*loaded(tmp_path, {"tools": [needs_tokenizer]}))
    assert report.problems == []
    assert report.notes[0].startswith("environments.default.tools[0]: ")
    assert "needs the model" in report.notes[0]


def test_a_tool_without_a_docstring_gets_a_note(tmp_path: Path) -> None:
    report = check_parts(*loaded(tmp_path, {"tools": [add, bare]}))
    assert len(report.notes) == 1
    assert "environments.default.tools[1]: the tool 'bare' has no docstring" in report.notes[0]


def of_trl(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    return [1.0]


def of_trl_short(completions: list[str], **columns: Any) -> list[float]:
    return [1.0]


def of_verl(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    return 1.0


def nothing() -> float:
    return 1.0


@pytest.mark.parametrize("function", [of_trl, of_trl_short, of_verl, nothing], ids=lambda it: it.__name__)
def test_a_reward_with_another_signature_is_refused(tmp_path: Path, function: Any) -> None:
    with pytest.raises(ConfigError, match=r"environments.default.rewards.*def .*\(episode\)"):
        loaded(tmp_path, {"rewards": [function]})


def test_a_reward_may_have_defaults_and_any_name_for_the_episode(tmp_path: Path) -> None:
    def mine(it: Episode, weight: float = 1.0, *more: Any, **columns: Any) -> float:
        return weight

    assert check_parts(*loaded(tmp_path, {"rewards": [mine]})).problems == []
