"""The section `cluster`: what it takes and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from toolrl.config.load import check_config
from toolrl.config.remarks import check_ranks
from toolrl.errors import ConfigError
from toolrl.plugins.registry import Registry


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("cluster.rollout_workers=-1",), "cluster.rollout_workers: Input should be ≥ 0"),
        (("cluster.worker=2",), "cluster.worker: unknown key"),
        (("cluster.worker_timeout=0",), "cluster.worker_timeout: Input should be > 0"),
        (("cluster.trainer_workers=-1",), "cluster.trainer_workers: Input should be ≥ 0"),
        (("deterministic=true", "cluster.rollout_workers=1"), "episodes in several processes can't wait for each"),
    ],
)
def test_mistakes_are_named(tree: dict[str, Any], registry: Registry, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_config(tree, overrides, registry=registry)
    assert message in "\n".join(caught.value.problems)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("rollout.max_staleness=1",), "rollout and training take turns"),
        (("trainer.offload=[optimizer, critic]",), "trainer.offload: critic is not supported"),
    ],
)
def test_what_several_ranks_cannot_do(
    tree: dict[str, Any], registry: Registry, overrides: tuple[str, ...], message: str
) -> None:
    config = check_config(tree, overrides, registry=registry).config
    check_ranks(config, distributed=False)
    with pytest.raises(ConfigError, match=message):
        check_ranks(config, distributed=True)
    split = check_config(tree, (*overrides, "cluster.rollout_workers=2"), registry=registry).config
    if "offload" not in overrides[0]:
        check_ranks(split, distributed=True)


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:one", "CPU"])
def test_what_is_no_device_is_found_without_torch(tree: dict[str, Any], registry: Registry, device: str) -> None:
    with pytest.raises(ConfigError, match=f"device: '{device}' is no device; set auto, cpu, cuda or cuda:N"):
        check_config(tree, (f"device='{device}'",), registry=registry)
    for known in ("auto", "cpu", "cuda", "cuda:3"):
        assert check_config(tree, (f"device={known}",), registry=registry).config.device == known
