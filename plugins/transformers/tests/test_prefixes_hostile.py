"""Groups of rows of every shape: what is found is true, and attention by groups is attention."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.types import Sampling
from toolrl_plugin_transformers import batch
from toolrl_plugin_transformers import prefixes as module
from toolrl_plugin_transformers.cache import CacheShape, SlotCache
from toolrl_plugin_transformers.prefixes import WORTH_GROUPING, Grouping, Prefixes, attend, group, read, seated


@st.composite
def families(draw: st.DrawFn) -> tuple[list[list[int]], int]:
    """Rows that branch off each other, and how much all have in common."""
    system = [1] * draw(st.integers(0, 700))
    prompts = [[*system, 10 + n, *[20 + n] * draw(st.integers(0, 900))] for n in range(draw(st.integers(1, 4)))]
    rows = []
    for number in range(draw(st.integers(1, 9))):
        prompt = draw(st.sampled_from(prompts))
        cut = draw(st.sampled_from([len(prompt), len(prompt), max(1, len(prompt) // 2)]))
        rows.append([*prompt[:cut], *draw(st.lists(st.integers(0, 3), max_size=3)), 100 + number])
    shared = min(map(len, rows)) - 1
    for row in rows:
        shared = module.common_prefix(rows[0], row, shared)
    return rows, shared if shared >= 64 else 0


@settings(max_examples=150, deadline=None)
@given(families())
def test_a_grouping_is_true_and_saves_what_it_says(given_: tuple[list[list[int]], int]) -> None:
    rows, shared = given_
    found = group(rows, shared)
    if found is None:
        return
    assert sorted(row for members in found.members for row in members) == list(range(len(rows)))
    assert found.shared == shared < found.common < min(map(len, rows))
    for members in found.members:
        assert len({tuple(rows[row][: found.common]) for row in members}) == 1
    saved = (len(rows) - len(found.members)) * (found.common - shared)
    assert saved >= WORTH_GROUPING


@st.composite
def groupings(draw: st.DrawFn) -> tuple[Grouping, list[int]]:
    """A grouping of some rows, and the tokens that each row has."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    order = draw(st.permutations(range(sum(sizes))))
    members, start = [], 0
    for size in sizes:
        members.append(tuple(order[start : start + size]))
        start += size
    shared = draw(st.integers(0, 5))
    common = shared + draw(st.integers(1, 6))
    lengths = [common + draw(st.integers(1, 7)) for _ in order]
    return Grouping(shared, common, tuple(members)), lengths


@settings(max_examples=150, deadline=None)
@given(groupings(), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**16))
def test_attention_by_groups_is_attention(
    given_: tuple[Grouping, list[int]], heads: int, queries: int, seed: int
) -> None:
    grouping, lengths = given_
    chance = torch.Generator().manual_seed(seed)
    rows, longest, dim = len(lengths), max(lengths), 4
    slots = SlotCache(CacheShape(2, heads, dim, dim, torch.float64, torch.device("cpu")), 1 << 20)
    slots.reserve(rows, longest, used=0)
    for block in (slots.keys, slots.values):
        block.copy_(torch.randn(block.shape, generator=chance, dtype=torch.float64))
        block[:, :, :, : grouping.shared] = block[:, :1, :, : grouping.shared].clone()
        for members in grouping.members:
            block[:, list(members), :, : grouping.common] = block[:, members[:1], :, : grouping.common].clone()
    query = torch.randn((rows, heads, queries, dim), generator=chance, dtype=torch.float64)
    hidden = torch.arange(longest) >= torch.tensor(lengths)[:, None]
    mask = torch.zeros(hidden.shape, dtype=torch.float64).masked_fill_(hidden, torch.finfo(torch.float64).min)
    mask = mask[:, None, None]
    held = read(slots, grouping)
    slots.reserve(2 * rows, longest + 200, used=rows)  # What is held doesn't depend on where the slots are.
    for layer in range(2):
        keys, values = (block[layer, :rows, :, :longest] for block in (slots.keys, slots.values))
        expected = (query @ keys.transpose(-1, -2) + mask).softmax(-1) @ values
        found = attend(query, keys, values, mask, held, layer)
        assert (found - expected).abs().max() <= 1e-13


def test_rows_that_are_mostly_alone_are_not_copied() -> None:
    """A pair among forty: its members save one row's reading, and all others would be copied for it."""
    beginning = 2 * WORTH_GROUPING
    alone = [[3 + row] * (beginning + 2) for row in range(38)]
    pair = [[*[1] * beginning, number, 9] for number in range(2)]
    assert group([*alone, *pair], 0) is None
    # Two of four are alone: as many are copied as there are pairs and more. Without them it pays.
    assert group([*alone[:2], *pair], 0) is None
    assert group([*pair, *[[*alone[0][:beginning], number, 9] for number in range(2)]], 0) is not None
    # One large group and small ones, which are padded to it.
    large = [[*[1] * beginning, number, 9] for number in range(24)]
    small = [[*[2 + number // 2] * beginning, number, 9] for number in range(8)]
    assert group([*large, *small], 0) is None


def test_beginnings_are_copied_anew_only_where_groups_or_weights_change(
    build: Any, sizes: Any, engine: Any, plain_logprobs: Any, weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that end one after the other, and weights that change while they decode."""
    model = build(transformers.Qwen3Config(**sizes, head_dim=16))
    prompts = [[n, *[(7 * i + n) % 250 for i in range(150)]] for n in range(2)]
    calls: list[str] = []
    grouped = threading.Event()

    def noted(slots: SlotCache, grouping: Grouping) -> Prefixes:
        calls.append("read")
        grouped.set()
        return read(slots, grouping)

    def noted_seats(prefixes: Prefixes, grouping: Grouping) -> Prefixes:
        calls.append("seated")
        return seated(prefixes, grouping)

    monkeypatch.setattr(module, "WORTH_GROUPING", 100)
    monkeypatch.setattr(batch, "read", noted)
    monkeypatch.setattr(batch, "seated", noted_seats)

    async def begin(running: Any, name: str) -> list[tuple[list[int], Any]]:
        found = []
        async with running.hold():
            for prompt in prompts:
                for number in range(6):
                    sampling, session = Sampling(20 + 2 * number, seed=number), f"{name} {prompt[0]} {number}"
                    found.append((prompt, asyncio.ensure_future(running.generate(prompt, sampling, session=session))))
            await asyncio.sleep(0.05)
        return found

    async def check(begun: list[tuple[list[int], Any]], version: int) -> None:
        for prompt, job in begun:
            got = await job
            expected = plain_logprobs(model, prompt, got.ids)
            places = [place for place, sampled_by in enumerate(got.versions) if sampled_by == version]
            assert [got.logprobs[at] for at in places] == pytest.approx([expected[at] for at in places], abs=1e-4)

    async def run() -> None:
        async with engine(model) as running:
            await check(await begin(running, "first"), 0)
            assert calls.count("read") < calls.count("seated")
            grouped.clear()
            begun = await begin(running, "second")
            assert await asyncio.to_thread(grouped.wait, 60)
            async with running.hold():
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(1.1)
                await running.update_weights(weights(model, 1), 1)
                calls.clear()
            await check(begun, 1)
            assert calls[:1] in ([], ["read"])  # Empty where all had ended before.

    asyncio.run(run())
