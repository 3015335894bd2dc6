"""What plugins that convert another system's configs have in common."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from toolrl.errors import ConfigError
from toolrl_common.conversion import Conversion, ConvertCommand, Number, Reading, command, count


class Other(Conversion):
    system, defaults = "Other", {"train.lr": 0.5, "train.steps": 7}
    learning = re.compile(r"^loss\.")


class Convert(ConvertCommand):
    system = "other"
    config_help = "a config"
    overrides_help = "more"

    def convert(self, config: str, overrides: Sequence[str]) -> tuple[dict[str, Any], Conversion]:
        report = Other(Reading(Path()))
        report.lose("gpu.count")
        report.lose("said", "a note\nof its own")
        report.remark("twice")
        report.remark("twice")
        tree = {"model": {"path": config}, "environments": {"default": {"max_turns": 2}}}
        if "loss" in overrides:
            report.lose("loss.kind", "'odd'")
        return ({**tree, overrides[0]: 1} if overrides and "loss" not in overrides else tree), report


def run(*words: str) -> int:
    converting, parser = Convert(), argparse.ArgumentParser()
    converting.configure(parser)
    return converting.run(parser.parse_args(words))


def check(tree: dict[str, Any], source: str) -> None:
    """What `config check` finds depends on the plugins that are installed; here it is one key."""
    if "nonsense" in tree:
        raise ConfigError([f"{source}: nonsense: unknown"])


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "check_config", check)


def test_what_was_lost_is_printed_and_stands_in_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("old/config.yaml") == 0
    text = Path("config.toolrl.yaml").read_text()
    assert text.startswith("# From old/config.yaml by `toolrl other convert`.\n# not carried over: gpu.count\n")
    assert "# not carried over: said: a note of its own\n" in text
    assert yaml.safe_load(text)["model"] == {"path": "old/config.yaml"}
    out = capsys.readouterr().out
    assert out.endswith("\nNot quite the same:\n  twice\n\nNot carried over:\n  gpu.count\n  said: a note of its own\n")


@pytest.mark.parametrize(
    "words",
    [
        ("a.yaml", "-o", "b.yaml", "--force", "extra=1"),
        ("--force", "a.yaml", "extra=1", "--out=b.yaml"),
    ],
)
def test_overrides_may_stand_before_and_after_options(words: tuple[str, ...]) -> None:
    assert run(*words) == 0
    assert yaml.safe_load(Path("b.yaml").read_text())["extra=1"] == 1


def test_what_changes_learning_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("a.yaml", "loss", "-o", "b.yaml") == 0
    out = capsys.readouterr().out
    assert out.startswith("wrote b.yaml\n\nNot carried over, though it changes what is learned:\n  loss.kind: 'odd'\n")
    assert "loss.kind" not in out.partition("Not carried over:")[2]
    header = Path("b.yaml").read_text().splitlines()
    assert header[1] == "# not carried over, though it changes what is learned: loss.kind: 'odd'"
    assert run("a.yaml", "loss", "-o", "c.yaml", "--json") == 0
    assert json.loads(capsys.readouterr().out)["learned"] == ["loss.kind"]


def test_only_what_has_an_effect_changes_learning() -> None:
    settings = other(
        "loss.kind=odd", "loss.off=False", "loss.zero=0", "loss.part.enable=False", "loss.part.size=3",
        "loss.on.enabled=true", "loss.on.size=3", "loss.unused.size=3", "gpu.count=8", "\n loss.late=2",
    )  # fmt: skip
    settings.idle("loss.unused")
    settings.lose("--config-name=mine", "isn't there")
    settings.lose("gpu.kind", learned=True)
    settings.lose_unused()
    kept = ["loss.kind", "loss.on.enabled", "loss.on.size", "loss.late"]
    assert settings.learned == ["--config-name=mine", "gpu.kind", *kept]
    assert (settings.lost["loss.kind"], settings.lost["loss.unused.size"]) == ("'odd'", "")
    assert set(settings.lost) >= {"loss.off", "loss.part.size", "gpu.count"}
    with pytest.raises(ConfigError, match=r"loss\.kind: no loss 'odd'"):
        settings.refuse("loss.kind", "no loss 'odd'", "Take it out.")


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("a.yaml", "-o", "b.yaml", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["written"] == "b.yaml"
    assert made["lost"]["gpu.count"] == ""
    assert made["remarks"] == ["twice"]
    assert made["problems"] == []


def test_a_config_that_check_refuses_is_written_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("a.yaml", "nonsense") == 1
    assert Path("a.toolrl.yaml").is_file()
    out = capsys.readouterr().out
    assert "To be mended by hand" in out
    assert "a.toolrl.yaml: nonsense: unknown" in out


def test_no_file_is_written_over() -> None:
    Path("a.toolrl.yaml").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        run("a.yaml")
    assert Path("a.toolrl.yaml").read_text() == "mine"
    assert run("a.yaml", "--force") == 0


def other(*overrides: str, **tree: Any) -> Other:
    reading = Reading(Path(), tree)
    reading.override(overrides)
    return Other(reading)


def test_the_users_settings_go_over_the_systems() -> None:
    settings = other(
        "train.lr=1e-3", "+a.b={c:1,d:[1,2]}", "~gone", "e='x: y'", "odd", gone=1, ref="${train.steps}/${oc.env:N}"
    )
    assert (settings.get("train.lr"), settings.get("train.steps"), settings.get("none", default=3)) == (1e-3, 7, 3)
    assert (settings.get("new", "ref"), settings.section("a.b"), settings.get("e")) == (
        "7/${N}",
        {"c": 1, "d": [1, 2]},
        "x: y",
    )
    assert (settings.unused(), settings.given("gone", "train.steps")) == ([], True)
    assert settings.lost == {"odd": "is no override, which has the form section.key=value"}
    assert (other(x=[1], y=None, z=0).unused(), other(over_sample=1).flag("over_sample")) == (["x", "z"], False)


def test_numbers_outside_of_their_bounds_are_told() -> None:
    settings = other(a="many", b=2.5, c=-1, d=True, train={"lr": "1e-6", "steps": 0})
    table = settings.numbers(
        Number("rate", ("train.lr",), most=1.0),
        Number("a", ("missing", "a"), 3.0),
        Number("b", ("b",), 4, whole=True),
        Number("c", ("c",), 5.0),
        Number("d", ("d",), 6.0, below=6.0),
        count("steps", "train.steps"),
    )
    assert table == {"rate": 1e-6, "a": 3.0, "b": 4, "c": 5.0}
    assert settings.lost["a"] == "'many' can't be; the config has 3"
    assert set(settings.lost) == {"a", "b", "c", "d"}


def test_what_samples_in_excess_names_the_nearest_setting() -> None:
    settings = other()
    settings.lose("rollout.over_sample_rate")
    assert "`rollout.max_staleness: 1` is nearest" in settings.lost["rollout.over_sample_rate"]


def test_steps_warm_up_and_loggers() -> None:
    settings = other(log=["wandb", "tensorboard"], name="a b/", path="~/m")
    assert (settings.steps(0, 3, 4, 10), settings.steps(9, 3, 4, None)) == ((6, 2), (9, None))
    assert not settings.remarks
    assert settings.steps(0, 3, 4, 2) == (100, None)
    assert "set it to 3 × rows / 4" in settings.remarks[0]
    assert (settings.warmup(0.1, 50), settings.warmup(1.0, 50)) == (0.1, 50)
    assert "trainer.warmup_steps: 0.1 is a share of trainer.steps" in settings.remarks[-1]
    assert (settings.observers("log"), settings.run_name("name")) == (["console", "tensorboard"], "a-b")
    assert "install toolrl-plugin-wandb" in settings.lost["log"]
    assert (settings.model_path("path"), settings.model_path("nowhere")) == ("${HOME}/m", "./model")
