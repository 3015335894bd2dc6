"""What groups of rows have in common: found where it pays, read once for each group, and the same logits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
import transformers

from toolrl.types import Sampling
from toolrl_plugin_transformers import batch
from toolrl_plugin_transformers.cache import SlotCache
from toolrl_plugin_transformers.model import ModelRunner
from toolrl_plugin_transformers.prefixes import WORTH_GROUPING, Grouping, Prefixes, group, read

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


@pytest.mark.parametrize("shared", [0, 5])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_a_groups_beginning_read_once_changes_nothing(key_heads: int, shared: int, build: Any, sizes: Any) -> None:
    """Groups of different size, and rows of different length: one with nothing of its own but the new token."""
    runner = ModelRunner(build(_config(sizes, key_heads)))
    runner.enter()
    assert runner.reads_prefixes
    system = list(range(5))
    one, two = [*system, *range(50, 57)], [*system, *range(60, 67)]
    prompts = [[*one, 20, 21], [*two, 22], one, [*two, *range(30, 45)], [*one, 23]]
    grouping = Grouping(shared, 12, ((0, 2, 4), (1, 3)))
    ids, positions = torch.arange(80, 85), torch.tensor([len(prompt) for prompt in prompts])
    found = []
    for grouped in (False, True):
        slots = SlotCache(runner.shape, 1 << 20)
        slots.reserve(5, 40, used=0)
        with torch.no_grad():
            runner.prefill(slots, 0, prompts, [0] * 5)
            prefixes = read(slots, grouping) if grouped else None
            if grouped:  # Those of the rows aren't looked at, but for what the first has in common with all.
                slots.keys[:, 1:, :, :12] = 1e3
                slots.keys[:, 0, :, shared:12] = 1e3
            found.append(runner.decode(slots, ids, positions, 28, None, shared, prefixes))
    runner.leave()
    assert (found[0] - found[1]).abs().max() <= 1e-5 * found[0].abs().max()


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

    monkeypatch.setattr(batch, "read", noted)
    for prompt, got in asyncio.run(run()):
        assert got.logprobs == pytest.approx(plain_logprobs(model, prompt, got.ids), abs=TIGHT)
    assert (2 in seen) == share
    assert bool(seen) == share
