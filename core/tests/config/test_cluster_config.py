"""The section `cluster`: what it takes and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from toolrl.config.load import check_config
from toolrl.errors import ConfigError
from toolrl.plugins.registry import Registry


def test_without_a_section_one_process_samples(tree: dict[str, Any], registry: Registry) -> None:
    assert check_config(tree, registry=registry).config.cluster.rollout_workers == 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("cluster.rollout_workers=-1",), "cluster.rollout_workers: Input should be ≥ 0"),
        (("cluster.worker=2",), "cluster.worker: unknown key"),
        (("cluster.weight_transfer=post",), "cluster.weight_transfer: "),
        (("cluster.worker_timeout=0",), "cluster.worker_timeout: Input should be > 0"),
        (("deterministic=true", "cluster.rollout_workers=1"), "episodes in several processes can't wait for each"),
    ],
)
def test_mistakes_are_named(tree: dict[str, Any], registry: Registry, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_config(tree, overrides, registry=registry)
    assert message in "\n".join(caught.value.problems)
