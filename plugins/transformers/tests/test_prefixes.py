"""What groups of rows have in common: found where it pays, read once for each group, and the same logits."""

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
from toolrl_plugin_torch.prefixes.tree import common_beginning
from toolrl_plugin_transformers import prefixes as module
from toolrl_plugin_transformers.cache import CacheShape, SlotCache
from toolrl_plugin_transformers.model import ModelRunner
from toolrl_plugin_transformers.prefixes import WORTH_GROUPING, Grouping, Prefixes, attend, group, read

TIGHT = 1e-4


def _config(sizes: dict[str, Any], key_heads: int) -> Any:
    return transformers.Qwen3Config(**{**sizes, "num_key_value_heads": key_heads}, head_dim=16)


def test_rows_are_grouped_where_the_most_is_saved() -> None:
    system = list(range(200))
    one, two = [*system, *[201] * 400], [*system, *[202] * 500]
    rows = [[*one, 1, 5], [*two, 2, 5], [*one, 3, 5], [*two, 4, 5], [*one, 5, 5], [*two, 6, 5]]
    found = group(rows, 200)
    # Four pairs of neighbours agree on 600 tokens, and the two of the second prompt on 100 more only.
    assert found == Grouping(200, 600, ((0, 2, 4), (1, 3, 5)))
    assert group(rows, 0) == Grouping(0, 600, ((0, 2, 4), (1, 3, 5)))


def test_rows_are_not_grouped_where_it_does_not_pay() -> None:
    saved = WORTH_GROUPING // 2
    rows = [[*[1] * saved, 7, 9], [*[1] * saved, 8, 9], [*[2] * saved, 7, 9], [*[2] * saved, 8, 9]]
    assert group(rows, 0) == Grouping(0, saved, ((0, 1), (2, 3)))
    assert group([row[1:] for row in rows], 0) is None
    assert group(rows[:1], 0) is None
    # A short row bounds what counts: its tokens are fewer.
    assert group([*rows, [1, 2, 3]], 0) is None
    # One large group among many single rows would be padding for the most part.
    single = [[3 + row] * (2 * saved) for row in range(40)]
    assert group([*single, *([1] * (2 * saved) + [n, 9] for n in range(12))], 0) is None


def test_in_16_bits_and_on_a_module_of_its_own_nothing_is_grouped(build: Any, sizes: Any) -> None:
    assert not ModelRunner(build(_config(sizes, 2)).to(torch.bfloat16)).reads_prefixes
    runner = ModelRunner(build(transformers.MistralConfig(**sizes, sliding_window=None)))
    assert not runner.reads_prefixes


@pytest.mark.parametrize("share", [True, False])
def test_groups_of_episodes_sample_what_the_model_says(
    share: bool, build: Any, sizes: Any, engine: Any, plain_logprobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come and go: their turns are of different length, and each has a second one."""
    model = build(transformers.Qwen3Config(**sizes, head_dim=16))
    prompts = [[n, *[(7 * i + n) % 250 for i in range(150)]] for n in range(2)]
    seen: list[int] = []

    def noted(slots: SlotCache, grouping: Grouping) -> Prefixes:
        seen.append(len(grouping.members))
        return read(slots, grouping)

    async def episode(running: Any, prompt: list[int], number: int) -> list[tuple[list[int], Any]]:
        name = f"{prompt[0]} {number}"
        first = await running.generate(prompt, Sampling(4 + number, seed=number), session=name)
        again = [*prompt, *first.ids, 9, 8, 7]
        return [(prompt, first), (again, await running.generate(again, Sampling(5, seed=number), session=name))]

    async def run() -> list[Any]:
        async with engine(model, share_prefixes=share) as running:
            async with running.hold():
                jobs = [asyncio.ensure_future(episode(running, p, n)) for p in prompts for n in range(6)]
                await asyncio.sleep(0.05)
            return [turn for turns in await asyncio.gather(*jobs) for turn in turns]

    monkeypatch.setattr(module, "read", noted)
    for prompt, got in asyncio.run(run()):
        assert got.logprobs == pytest.approx(plain_logprobs(model, prompt, got.ids), abs=TIGHT)
    assert (2 in seen) == share
    assert bool(seen) == share


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
        shared = common_beginning(rows[0], row, shared)
    return rows, shared if shared >= 64 else 0


@settings(max_examples=60, deadline=None)
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


@settings(max_examples=60, deadline=None)
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


def test_new_weights_reach_what_groups_have_in_common(
    build: Any, sizes: Any, engine: Any, plain_logprobs: Any, weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that end one after the other, and weights that change while they decode."""
    model = build(transformers.Qwen3Config(**sizes, head_dim=16))
    prompts = [[n, *[(7 * i + n) % 250 for i in range(150)]] for n in range(2)]
    grouped = threading.Event()

    def noted(slots: SlotCache, grouping: Grouping) -> Prefixes:
        grouped.set()
        return read(slots, grouping)

    monkeypatch.setattr(module, "WORTH_GROUPING", 100)
    monkeypatch.setattr(module, "read", noted)

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
            grouped.clear()
            begun = await begin(running, "second")
            assert await asyncio.to_thread(grouped.wait, 60)
            async with running.hold():
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(1.1)
                await running.update_weights(weights(model, 1), 1)
            await check(begun, 1)

    asyncio.run(run())
