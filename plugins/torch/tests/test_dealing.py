"""Updates of a step: each has an equal share of what the loss is averaged over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="the trainer needs transformers: pip install toolrl[train]")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from toolrl.types import Group, Task  # noqa: E402
from toolrl_plugin_torch.algorithm import AlgorithmConfig  # noqa: E402
from toolrl_plugin_torch.batch import split  # noqa: E402
from toolrl_plugin_torch.options import TrainerConfig  # noqa: E402
from toolrl_plugin_torch.policy import Policy  # noqa: E402
from toolrl_plugin_torch.sharding.balancing import deal  # noqa: E402
from toolrl_plugin_torch.trainer import PolicyTrainer  # noqa: E402

LENGTHS = (40, 3, 4, 3, 4, 3, 4, 3)
"""Sampled tokens: one episode is longer than all others together."""


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 8))
def test_even_lists_are_as_long_as_each_other_and_nearly_as_dear(costs: list[int], parts: int) -> None:
    lists = split(costs, parts, even=True)
    assert sorted(index for chosen in lists for index in chosen) == list(range(len(costs)))
    assert len(lists) == min(parts, len(costs))
    assert all(chosen == sorted(chosen) for chosen in lists)
    if lists:
        counts, sums = [len(chosen) for chosen in lists], [sum(costs[index] for index in chosen) for chosen in lists]
        assert max(counts) - min(counts) <= 1
        assert max(sums) - min(sums) <= max(costs) + len(costs)


def test_whole_groups_are_dealt_evenly_too() -> None:
    groups, costs = [group for group in "abcd" for _ in range(2)], [50, 50, 1, 1, 2, 2, 3, 3]
    assert deal(groups, costs, 2, together=True) == [[0, 1], [2, 3, 4, 5, 6, 7]]
    assert deal(groups, costs, 2, together=True, even=True) == [[0, 1, 2, 3], [4, 5, 6, 7]]


class Noting:
    """A policy loss that notes how many episodes and tokens each update has."""

    def __init__(self) -> None:
        self.updates: list[tuple[int, int]] = []

    def token_losses(self, terms: Any) -> Any:
        self.updates.append((terms.mask_BT.shape[0], int(terms.mask_BT.sum())))
        return -terms.advantages_BT * terms.logprobs_BT


@pytest.mark.parametrize(
    ("loss", "updates"),
    [
        # Alone in its update, the long one would weigh as much as all seven others together.
        ("sequence_mean", [(4, 50), (4, 14)]),
        ("sequence_sum", [(4, 50), (4, 14)]),
        ("constant", [(4, 50), (4, 14)]),
        ("token_mean", [(1, 40), (7, 24)]),
    ],
)
def test_an_update_has_its_share_of_what_the_loss_is_averaged_over(
    loss: Any, updates: list[tuple[int, int]], tiny: Any, make_episode: Any, tmp_path: Path
) -> None:
    class PadOnly:
        pad_token_id = 0

    noting = Noting()
    policy = Policy(tiny.model("qwen3"), PadOnly(), "tiny", torch.device("cpu"), torch.float32)
    trainer = PolicyTrainer(
        policy,
        TrainerConfig(updates_per_step=2, share_prefix=False, steps=10),
        AlgorithmConfig(policy_loss="noting", loss_aggregation=loss),
        tmp_path,
        temperature=1.0,
        longest=64,
        custom_loss=noting,
    )
    episodes = [
        make_episode((0, *[1] * length), reward=float(index % 2), index=index, ids=(4, *[5 + index] * length))
        for index, length in enumerate(LENGTHS)
    ]
    trainer.update([Group("g", Task("g", ()), tuple(episodes))])
    assert noting.updates == updates
