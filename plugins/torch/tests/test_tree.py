"""Trees of tokens: every sequence is a path in its tree, shared tokens stand once, budgets hold."""

from __future__ import annotations

import random
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.types import MediaInput
from toolrl_plugin_torch.batch import Sample, pack
from toolrl_plugin_torch.prefixes.tree import TokenTree, grow

tokens = st.lists(st.integers(0, 2), min_size=2, max_size=12)


def seen(tree: TokenTree) -> list[set[int]]:
    """Which places of the row each place sees, from the nodes alone."""
    visible = []
    for place in range(tree.positions):
        above = [node for node in tree.nodes if node.end <= place < node.until]
        (own,) = (node for node in tree.nodes if node.start <= place < node.end)
        assert own.depth == len(above)
        before = {seen for node in above for seen in range(node.start, node.end)}
        visible.append(before | set(range(own.start, place + 1)))
    return visible


def check(tree: TokenTree, sequences: list[list[int]]) -> None:
    """Each token of each sequence is predicted from a place that sees exactly the tokens before it, in order."""
    visible, ids, positions = seen(tree), tree.input_ids_N.tolist(), tree.position_ids_N.tolist()
    assert len(visible) == tree.positions == len(ids) == len(positions)
    for row, sequence in enumerate(sequences):
        for t in range(1, len(sequence)):
            places = sorted(visible[int(tree.predictor_BT[row, t])], key=positions.__getitem__)
            assert [ids[place] for place in places] == sequence[:t]
            assert [positions[place] for place in places] == list(range(t))


@settings(max_examples=200, deadline=None)
@given(st.lists(tokens, min_size=1, max_size=12), st.integers(1, 8))
def test_every_sequence_is_a_path(sequences: list[list[int]], worth: int) -> None:
    tree = grow(sequences, worth=worth)
    check(tree, sequences)
    assert tree.positions <= sum(len(sequence) - 1 for sequence in sequences)


@settings(max_examples=100, deadline=None)
@given(st.lists(tokens, min_size=1, max_size=12))
def test_a_token_stands_once_where_every_fork_is_worth_it(sequences: list[list[int]]) -> None:
    beginnings = {tuple(sequence[:t]) for sequence in sequences for t in range(1, len(sequence))}
    assert grow(sequences, worth=1).positions == len(beginnings)


def test_prompts_and_what_prompts_have_in_common() -> None:
    common = list(range(100, 150))
    groups = [[*common, *range(start, start + 40)] for start in (200, 300)]
    completions = [[400 + 10 * number, *range(500, 507)] for number in range(3)]
    tree = grow([[*prompt, *completion] for prompt in groups for completion in completions])
    # The last token of a sequence predicts nothing.
    assert tree.positions == 50 + 2 * 40 + 6 * 7
    assert [node.end - node.start for node in tree.nodes] == [50, *[40, 7, 7, 7] * 2]


def test_deep_trees_need_no_deep_stack() -> None:
    """Each sequence is the beginning of the next."""
    sequences = [[7] * length for length in range(2, 500)]
    tree = grow(sequences, worth=1)
    assert tree.positions == 498
    assert len(tree.nodes) == 498


def samples_of(groups: list[tuple[int, int]], seed: int = 0) -> list[Sample]:
    """Groups of (prompt tokens, episodes), completions of one to thirty tokens, in no order."""
    chance = random.Random(seed)
    samples = []
    for length, episodes in groups:
        prompt = [chance.randrange(1000) for _ in range(length)]
        for _ in range(episodes):
            mask = [0] * length + [1] + [chance.randrange(2) for _ in range(chance.randrange(30))]
            ids = [*prompt, *(chance.randrange(1000) for _ in range(len(mask) - length))]
            samples.append(Sample(ids, mask, [-0.5 * m for m in mask], [1.5 * m for m in mask]))
    chance.shuffle(samples)
    return samples


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 6)), max_size=6), st.integers(1, 300))
def test_trees_under_the_budget(groups: list[tuple[int, int]], budget: int) -> None:
    samples = samples_of(groups)
    batches = pack(samples, budget, pad_id=3, share=True)
    assert sorted(index for batch in batches for index in batch.samples) == list(range(len(samples)))
    for batch in batches:
        assert batch.tree is not None
        assert batch.positions == batch.tree.positions
        assert batch.positions <= budget or len(batch.samples) == 1
        rows = [samples[index] for index in batch.samples]
        lengths = [max(t for t, m in enumerate(sample.loss_mask) if m) + 1 for sample in rows]
        check(batch.tree, [list(sample.ids[:length]) for sample, length in zip(rows, lengths, strict=True)])
        assert batch.tree.predictor_BT.shape == batch.input_ids_BT.shape
        for row, (sample, length) in enumerate(zip(rows, lengths, strict=True)):
            assert batch.loss_mask_BT[row, :length].int().tolist() == list(sample.loss_mask[:length])
            assert batch.advantages_BT[row, :length].tolist() == list(sample.advantages[:length])
            assert not batch.loss_mask_BT[row, length:].any()


def test_images_are_not_shared() -> None:
    samples = samples_of([(50, 3)])
    image = MediaInput("image", (0, 2), "key", {"pixel_values": torch.zeros(1, 3)})
    shown: Any = [Sample(s.ids, s.loss_mask, s.logprobs, s.advantages, (image,)) for s in samples[:1]]
    batches = pack([*shown, *samples[1:]], 1000, share=True)
    assert [batch.samples for batch in batches if batch.tree is None] == [(0,)]
    assert sorted(i for batch in batches if batch.tree is not None for i in batch.samples) == [1, 2]
