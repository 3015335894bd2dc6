"""Without the library every part says how to get it."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from gym_tasks import data, reward

from toolrl.cli.main import main
from toolrl.errors import ConfigError
from toolrl_plugin_reasoning_gym import process
from toolrl_plugin_reasoning_gym.reward import check


@pytest.fixture(autouse=True)
def _absent(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def without(name: str, *rest: Any) -> Any:
        return None if name == process.LIBRARY else find(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)


@pytest.mark.parametrize("use", [lambda: data("chain_sum"), reward, check])
def test_what_needs_it_says_so(use: Any) -> None:
    with pytest.raises(ConfigError, match="reasoning_gym isn't installed") as caught:
        use()
    assert caught.value.hint == "pip install 'toolrl-plugin-reasoning-gym[library]'"


def test_for_doctor_it_is_unavailable_and_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("toolrl_plugin_start", reason="brings `toolrl doctor`")
    assert main(["doctor", "reasoning-gym"]) == 0
    assert "unavailable" in capsys.readouterr().out


def test_so_does_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reasoning-gym", "list"]) != 0
    assert "pip install 'toolrl-plugin-reasoning-gym[library]'" in capsys.readouterr().err
