"""Observers that plugins add to every run."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from toolrl import Component, hookimpl
from toolrl.builtin import plugin
from toolrl.config.model import Config
from toolrl.plugins.registry import Registry
from toolrl.run_builder import RunBuilder
from toolrl.runs.folder import RunFolder

MODULE = "observers_of_every_run"
ENDED: list[str] = []


class Sound:
    """Notes that a run ended."""

    def __init__(self, options: None, context: Any) -> None: ...

    def toolrl_run_end(self, run: Any, error: BaseException | None) -> None:
        ENDED.append(run.name)


class Raises(Sound):
    """Can't be built."""

    def __init__(self, options: None, context: Any) -> None:
        raise RuntimeError("broken")


class Misspelled:
    """Can't be told of anything."""

    def __init__(self, options: None, context: Any) -> None: ...

    def toolrl_run_ends(self) -> None: ...


class Fails(Sound):
    """Fails when it is told."""

    def toolrl_run_end(self, run: Any, error: BaseException | None) -> None:
        raise RuntimeError("broken")


def test_one_that_is_broken_harms_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    targets = ModuleType(MODULE)
    vars(targets).update(Sound=Sound, Raises=Raises, Misspelled=Misspelled, Fails=Fails)
    monkeypatch.setitem(sys.modules, MODULE, targets)

    @hookimpl
    def toolrl_observers() -> list[Component[Any]]:
        broken = [Component(name, f"{MODULE}:{name}", every_run=True) for name in ("Raises", "Misspelled", "Fails")]
        return [*broken, Component("Sound", f"{MODULE}:Sound", every_run=True), Component("named", f"{MODULE}:Raises")]

    demo = ModuleType("demo")
    vars(demo)["toolrl_observers"] = toolrl_observers
    registry = Registry.from_modules({"demo": demo, "builtin": plugin})
    config = Config.model_validate({"model": {"path": "m"}, "environments": {"default": {}}})
    loaded: Any = SimpleNamespace(config=config, hide=str)
    model: Any = SimpleNamespace(device="cpu", tokenizer=None, processor=None)
    folder = RunFolder.create(tmp_path / "first", {}, total_steps=1)
    with caplog.at_level(logging.WARNING):
        events = RunBuilder(loaded, registry, model, tmp_path).events(folder, ())
        events.run_start()
        events.run_end(None)
    assert ENDED == ["first"]
    assert events.failures == {"demo/Fails": 1}
    for name in ("Raises", "Misspelled"):
        assert f"the run continues without the observer demo/{name}: " in caplog.text
    assert folder.summary()["status"] == "finished"
