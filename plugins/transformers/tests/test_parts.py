"""The parts by themselves: sampling and stop strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toolrl.types import Sampling
from toolrl_plugin_transformers.sampling import RowSettings, Uniforms, sample
from toolrl_plugin_transformers.stops import StopStrings

CPU = torch.device("cpu")


def _draw(logits: torch.Tensor, sampling: Sampling, count: int, ids: int | None = None) -> np.ndarray:
    """Frequencies of `count` draws from one row of logits."""
    uniforms = Uniforms(0)
    settings = RowSettings.of([sampling] * count, CPU)
    numbers = torch.tensor([uniforms.draw() for _ in range(count)])
    tokens, *_ = sample(logits.expand(count, -1), numbers, settings, ids or logits.shape[-1])
    return np.bincount(tokens.numpy(), minlength=logits.shape[-1]) / count


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([2.0, 0.0, -1.0, 1.0, float("-inf"), 0.5])
    for temperature in (0.5, 1.0, 2.0):
        wanted = torch.softmax(logits / temperature, -1).numpy()
        got = _draw(logits, Sampling(1, temperature=temperature), 40_000)
        assert np.abs(got - wanted).max() < 0.01
        assert got[4] == 0


def test_top_k_top_p_and_min_p_cut_where_they_say() -> None:
    probs = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05])
    cases = [
        (Sampling(1, top_k=2), [4 / 7, 3 / 7, 0, 0, 0]),
        (Sampling(1, top_p=0.7), [4 / 7, 3 / 7, 0, 0, 0]),
        (Sampling(1, top_p=0.71), [0.4 / 0.85, 0.3 / 0.85, 0.15 / 0.85, 0, 0]),
        (Sampling(1, top_p=0.01), [1, 0, 0, 0, 0]),
        (Sampling(1, top_k=3, top_p=0.5), [4 / 7, 3 / 7, 0, 0, 0]),  # top-p of what top-k left
        (Sampling(1, top_k=99), probs.tolist()),
        (Sampling(1, min_p=0.3), [0.4 / 0.85, 0.3 / 0.85, 0.15 / 0.85, 0, 0]),  # 0.3 of the likeliest's 0.4
        (Sampling(1, min_p=0.3, top_k=2), [4 / 7, 3 / 7, 0, 0, 0]),
        (Sampling(1, min_p=1.0), [1, 0, 0, 0, 0]),
    ]
    for sampling, wanted in cases:
        assert np.abs(_draw(probs.log(), sampling, 40_000) - np.array(wanted)).max() < 0.01, sampling


def test_rows_of_a_batch_keep_to_their_own_settings() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(7, 50, generator=generator)
    rows = [
        Sampling(1),
        Sampling(1, temperature=0.0),
        Sampling(1, top_k=1),
        Sampling(1, temperature=0.3, top_p=1e-6),
        Sampling(1, temperature=3.0),
        Sampling(1, top_k=4, top_p=0.9),
        Sampling(1, min_p=0.2),
    ]
    numbers = torch.tensor([0.1, 0.9, 0.9, 0.9, 0.5, 0.7, 0.99])
    together = sample(logits, numbers, RowSettings.of(rows, CPU), 50)
    for i, row in enumerate(rows):
        token, logprob, _ = sample(logits[i : i + 1], numbers[i : i + 1], RowSettings.of([row], CPU), 50)
        assert int(token) == int(together[0][i])
        assert float(logprob) == pytest.approx(float(together[1][i]), abs=1e-6)
        table = torch.log_softmax(logits[i] / (row.temperature or 1.0), -1)
        assert float(logprob) == pytest.approx(float(table[int(token)]), abs=1e-6)
    assert together[0][1:4].tolist() == logits[1:4].argmax(-1).tolist()


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=40), st.sampled_from([0.0, 1e-7, 0.5, 1 - 2.0**-23]))
def test_a_draw_is_always_an_id_with_mass(logits: list[float], uniform: float) -> None:
    row = torch.tensor([logits])
    token, logprob, _ = sample(row, torch.tensor([uniform]), RowSettings.of([Sampling(1)], CPU), len(logits))
    assert 0 <= int(token) < len(logits)
    assert torch.softmax(row, -1)[0, int(token)] > 0
    assert float(logprob) > -float("inf")


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200, 1000])
def test_a_draw_by_blocks_is_that_of_one_cumulative_sum(count: int) -> None:
    chance = torch.Generator().manual_seed(count)
    logits = torch.randn(40, count, generator=chance) * 3
    never = [0, count // 2] if count > 2 else []
    numbers = torch.rand(40, generator=chance)
    settings = RowSettings.of([Sampling(1)] * 40, CPU)
    # Two ids at the end that the tokenizer doesn't know.
    wide = torch.cat([logits, torch.full((40, 2), 9.0)], dim=1)
    tokens, logprobs, _ = sample(wide, numbers, settings, count, never)
    weights = logits.double().exp()
    weights[:, never] = 0
    cumulative = weights.cumsum(1)
    bounds = torch.cat([torch.zeros(40, 1), cumulative], dim=1) / cumulative[:, -1:]
    drawn = tokens[:, None]
    targets = numbers[:, None]
    assert bool((bounds.gather(1, drawn) <= targets + 1e-5).all())
    assert bool((bounds.gather(1, drawn + 1) >= targets - 1e-5).all())
    assert bool((weights.gather(1, drawn) > 0).all())
    wanted = wide.log_softmax(1).gather(1, drawn)[:, 0]
    assert float((logprobs - wanted).abs().max()) < 1e-5


def test_a_number_that_falls_between_two_blocks_draws_no_id_without_mass() -> None:
    """Sums are rounded: the part of a target that is left for a block may come out below 0."""
    chance = torch.Generator().manual_seed(0)
    logits = torch.randn(2000, 4 * 64, generator=chance) * 4
    logits[:, ::64] = -torch.inf  # The first of each block.
    settings = RowSettings.of([Sampling(1)] * 2000, CPU)
    weights = (logits - logits.amax(-1, keepdim=True)).exp()
    blocks = weights.unflatten(1, (-1, 64)).sum(-1).cumsum(-1)
    for edge in range(3):
        at_the_edge = blocks[:, edge] / blocks[:, -1]
        for numbers in (
            at_the_edge,
            at_the_edge.nextafter(torch.tensor(0.0)),
            at_the_edge.nextafter(torch.tensor(1.0)),
        ):
            tokens, *_ = sample(logits, numbers.clamp(0, 1 - 2.0**-23), settings, 256)
            assert bool((weights.gather(1, tokens[:, None]) > 0).all())


def _first_stop(text: str, stops: tuple[str, ...], tokenizer: Any) -> tuple[str, str] | None:
    """(text up to and with the completing token, the stop string)."""
    watch = StopStrings(stops, tokenizer)
    sampled: list[int] = []
    for token in tokenizer(text).input_ids:
        sampled.append(token)
        if watch.could_end(token) and (stop := watch.find(sampled)):
            return tokenizer.decode(sampled), stop
    return None


@pytest.mark.parametrize(
    ("text", "stops", "found"),
    [
        ("grüße, bye", ("üße",), ("grüße", "üße")),
        ("x🙂y", ("🙂",), ("x🙂", "🙂")),
        ("abcd", ("bcd", "abc"), ("abc", "abc")),
        ("no", ("stop!",), None),
        ("say <end>now", ("y <e",), ("say <end>", "y <e")),
    ],
)
def test_stop_strings_over_tokens(text: str, stops: tuple[str, ...], found: Any, byte_tokenizer: Any) -> None:
    assert _first_stop(text, stops, byte_tokenizer("<end>")) == found


@given(st.text("ab<>/é", max_size=12), st.lists(st.text("ab<>/é", min_size=1, max_size=4), min_size=1, max_size=3))
def test_a_stop_string_is_found_exactly_where_the_text_first_holds_it(text: str, stops: list[str]) -> None:
    tokenizer = _SHARED_TOKENIZER
    tokens = tokenizer(text).input_ids
    wanted = None
    for end in range(1, len(tokens) + 1):
        said = tokenizer.decode(tokens[:end])
        if any(stop in said for stop in stops):
            wanted = said
            break
    got = _first_stop(text, tuple(stops), tokenizer)
    assert (got[0] if got else None) == wanted


@pytest.fixture(autouse=True, scope="module")
def _tokenizer(byte_tokenizer: Any) -> None:
    global _SHARED_TOKENIZER
    _SHARED_TOKENIZER = byte_tokenizer("</a>", "b<")


_SHARED_TOKENIZER: Any = None
