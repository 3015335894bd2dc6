"""What a config says that may surprise."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from toolrl.config.load import check_config
from toolrl.config.remarks import missing_files, remarks
from toolrl.errors import ConfigError, DataError
from toolrl.plugins.registry import Registry


def told(tree: dict[str, Any], registry: Registry, *overrides: str) -> str:
    return "\n".join(remarks(check_config(tree, overrides, registry=registry).config, registry))


@pytest.mark.parametrize(
    ("override", "is_told"),
    [("seed=1", False), ("rollout.top_p=0.9", True), ("rollout.top_k=20", True), ("rollout.min_p=0.1", True)],
)
def test_truncated_sampling_is_told(tree: dict[str, Any], registry: Registry, override: str, is_told: bool) -> None:
    assert ("the policy that samples isn't the one" in told(tree, registry, override)) is is_told
    kept = told(tree, registry, override, "rollout.keep_sampling_masks=true")
    assert "the policy that samples" not in kept
    assert ("rollout.keep_sampling_masks: no effect" in kept) is not is_told


def test_sampling_masks_are_advised_where_the_engine_has_them(
    tree: dict[str, Any], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = told(tree, registry, "rollout.top_p=0.9")
    assert "engine transformers records no sampling masks" in said
    assert "set rollout.keep_sampling_masks" not in said
    options = registry.get("engines", "transformers").component.load_options()
    monkeypatch.setattr(options, "sampling_problem", lambda self, rollout: None, raising=False)
    assert "set rollout.keep_sampling_masks" in told(tree, registry, "rollout.top_p=0.9")


def test_a_key_without_effect_gets_a_remark(tree: dict[str, Any], registry: Registry) -> None:
    found = told(tree, registry, "cluster.weight_transfer=file")
    assert "cluster.weight_transfer: has no effect any more; leave it out" in found


def test_an_old_name_is_read_as_the_present_one(tree: dict[str, Any], registry: Registry) -> None:
    loaded = check_config(tree, ["algorithm.kl_penalty=0.5"], registry=registry)
    assert loaded.resolved["algorithm"]["kl_coef"] == 0.5
    assert "algorithm.kl_penalty: is called `kl_coef` now" in remarks(loaded.config, registry)
    of_tool = "environments.default.tools[1]"
    found = told(tree, registry, f"{of_tool}.options={{digits: 4}}")
    assert f"{of_tool}.options.digits: is called `precision` now" in found
    with pytest.raises(ConfigError, match="algorithm.kl_penalty: unknown key"):
        check_config(tree, ["algorithm.kl_penalty=0.5", "algorithm.kl_coef=1"], registry=registry)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("cluster.trainer_workers=2", "rollout.max_staleness=1"), "rollout.max_staleness: where weights are spread"),
        (("cluster.trainer_workers=1", "rollout.max_staleness=1"), None),
        (("cluster.trainer_workers=2", "cluster.rollout_workers=1", "rollout.max_staleness=1"), None),
        (("device=cuda",), None),
    ],
)
def test_what_training_will_refuse_is_told(
    tree: dict[str, Any], registry: Registry, overrides: tuple[str, ...], line: str | None
) -> None:
    found = told(tree, registry, *overrides)
    assert ("`toolrl train` refuses it" in found) is (line is not None)
    assert line is None or line in found


def test_workers_without_a_cluster_plugin_are_reported(
    tree: dict[str, Any], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolrl.config.remarks._missing_of", lambda options: None)
    for field in ("rollout_workers", "trainer_workers"):
        wanted = check_config(tree, [f"cluster.{field}=2"], registry=registry).config
        (line,) = [it for it in missing_files(wanted, registry) if it.startswith("cluster.")]
        assert line.startswith(f"cluster.{field}: there is no cluster named 'ray'")
        assert "pip install toolrl-plugin-ray" in line
    assert not [it for it in missing_files(check_config(tree, [], registry=registry).config, registry) if "ray" in it]


def test_files_that_components_miss_are_told_with_their_places(
    tree: dict[str, Any], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_files(self: Any) -> None:
        if self.precision == 5:
            raise DataError(f"no file matches {self.path!r}")

    monkeypatch.setattr(sys.modules["config_test_components"].Options, "check_files", check_files, raising=False)
    tree["sft"] = {"from_run": "runs/none"}
    config = check_config(tree, registry=registry).config
    assert list(missing_files(config, registry)) == [
        "sft.from_run: there is no folder 'runs/none' here",
        "data.eval.options: no file matches 'x'",
    ]


def test_the_trainer_has_remarks_of_its_own(tree: dict[str, Any], registry: Registry) -> None:
    assert told(tree, registry, "trainer.betas=[0.9, 0.999]") == "trainer.betas: they are wide"
    config = check_config(tree, ["model.dtype=bfloat16"], registry=registry).config
    assert "model.dtype: needs another chip" in list(missing_files(config, registry))


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("environments.default.stop_at_answer=true",), "environments.default.stop_at_answer: no effect"),
        (
            ("environments.default.stop_at_answer=true", "environments.default.end_flags=[boxed]"),
            "environments.default.stop_at_answer: no effect",
        ),
        (
            ("environments.default.end_flags=[answer, answer]",),
            "environments.default.end_flags: 'answer' is there twice",
        ),
        (("environments.default.untrained_roles=[user, user]",), "untrained_roles: 'user' is there twice"),
        (("cluster.worker_resources={big: 1}",), "cluster.worker_resources: no effect"),
    ],
)
def test_an_entry_without_effect_gets_a_remark(
    tree: dict[str, Any], registry: Registry, overrides: tuple[str, ...], line: str
) -> None:
    assert line in told(tree, registry, *overrides)


def test_entries_with_an_effect_get_none(tree: dict[str, Any], registry: Registry) -> None:
    flags = ("environments.default.stop_at_answer=true", "environments.default.end_flags=[answer, boxed]")
    assert "no effect" not in told(tree, registry, *flags)
    assert "twice" not in told(tree, registry, *flags)
