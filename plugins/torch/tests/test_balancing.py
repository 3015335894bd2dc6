"""Updates of a step: each has an equal share of what the loss is averaged over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl.types import Group, Task
from toolrl_plugin_torch.batch import split

LENGTHS = (40, 3, 4, 3, 4, 3, 4, 3)
"""Sampled tokens: one episode is longer than all others together."""


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 8), st.booleans())
def test_parts_are_as_dear_as_each_other_and_even_ones_as_long(costs: list[int], parts: int, even: bool) -> None:
    lists = split(costs, parts, even=even)
    assert sorted(index for chosen in lists for index in chosen) == list(range(len(costs)))
    assert len(lists) == min(parts, len(costs))
    assert all(chosen == sorted(chosen) and chosen for chosen in lists)
    if lists:
        counts, sums = [len(chosen) for chosen in lists], [sum(costs[index] for index in chosen) for chosen in lists]
        assert not even or max(counts) - min(counts) <= 1
        # Dealing the dearest first leaves no two lists further apart than the dearest item.
        assert max(sums) - min(sums) <= max(costs) + len(costs)


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
    noting = Noting()
    algorithm = {"policy_loss": "noting", "loss_aggregation": loss}
    trainer = tiny.trainer(tmp_path, None, algorithm, updates_per_step=2, share_prefix=False, custom_loss=noting)
    episodes = [
        make_episode((0, *[1] * length), reward=float(index % 2), index=index, ids=(4, *[5 + index] * length))
        for index, length in enumerate(LENGTHS)
    ]
    trainer.update([Group("g", Task("g", ()), tuple(episodes))])
    assert noting.updates == updates
