"""Verifies that another copy of a model, or another way to compute it, is right: by log-probabilities and by digests.

**Log-probabilities** of a fixed text find a wrong computation. In float32 the greatest difference is bounded. In 16-bit
types correct kernels differ by far more, each model's by its own amount. So the bound is `FACTOR` times the model's own
noise: the difference between two attention implementations on the same text. Differences have heavy tails (one token by
4 nats, the median by 0.1), so the mean leaves out the largest fifth. Random ids would have up to six times the noise of
a text. docs/explanation/exactness.md has the figures that `FACTOR` lies between.

**Digests** of tensors find a stale one, which log-probabilities in 16-bit types can't.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from toolrl.errors import EngineError
from toolrl_plugin_torch.head import wide_linear
from toolrl_plugin_torch.modes import evaluating

LENGTH = 128
TEXT = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many clips did "
    "she sell in both months? In May she sold 48 / 2 = 24 clips, so together she sold 48 + 24 = 72 clips. The weather "
    "in the north was cold that spring, and most people stayed at home, where they read books or listened to music. "
    "To read a file line by line in Python, write: with open(path) as file: for line in file: print(line.strip()). A "
    "good answer is short, says what is known, and names what isn't."
)
GREATEST = 1e-4
"""Allowed for each token in float32."""
FACTOR, FLOOR, CEILING, UNKNOWN = 2.2, 0.01, 1.0, 0.1
"""In 16-bit types: what is allowed as a multiple of the model's own noise; at least; at most; and where that noise
can't be measured: there is one attention implementation only, or the other one overflows."""
_KEPT = 0.8
"""Part of the differences that `typical` averages."""


def probe_ids(tokenizer: Any, known_ids: int, length: int = LENGTH) -> list[int]:
    """The same at most 128 ids below `known_ids` at every call: of a text, or without a tokenizer random low ones."""
    length = max(2, min(LENGTH, length))
    ids = tokenizer.encode(TEXT, add_special_tokens=False) if hasattr(tokenizer, "encode") else []
    ids = [token for token in ids if token < known_ids][:length]
    chance = random.Random(0)
    return [*ids, *(chance.randrange(min(known_ids, 4096)) for _ in range(length - len(ids)))]


def module_logprobs(module: Any, ids: Sequence[int]) -> torch.Tensor:
    """Natural log-probabilities of every token but the first, in one forward pass without a cache. Logits are float32,
    as the trainer's and the engines' are."""
    with evaluating(module), torch.no_grad(), _wide_head(module):
        given = torch.tensor([list(ids)], device=next(module.parameters()).device)
        logits = module(input_ids=given, use_cache=False).logits[0, :-1].float()
        return torch.log_softmax(logits, dim=-1).gather(1, given[0, 1:, None])[:, 0].cpu()


@contextmanager
def _wide_head(module: Any) -> Iterator[None]:
    """Meanwhile a 16-bit model's head multiplies in float32, if it is a plain linear layer."""

    def widen(head: torch.nn.Linear, given: tuple[torch.Tensor, ...], logits: torch.Tensor) -> torch.Tensor:
        if logits.dtype.itemsize > 2:
            return logits
        hidden_NH = given[0].reshape(-1, given[0].shape[-1])
        return wide_linear(hidden_NH, head.weight, head.bias, torch.float32).view(logits.shape)

    head = module.get_output_embeddings()
    hook = head.register_forward_hook(widen) if type(head) is torch.nn.Linear else None
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()


def typical(differences: torch.Tensor) -> float:
    """Mean absolute value, the largest fifth left out; infinite where one isn't finite."""
    sizes = differences.abs().flatten().double()
    if not bool(sizes.isfinite().all()):
        return math.inf
    return float(sizes.sort().values[: math.ceil(_KEPT * len(sizes))].mean())


def allowed_rounding(module: Any, compute: Callable[[], torch.Tensor]) -> float:
    """What `typical` may be for a 16-bit model. `compute` gives log-probabilities by the module as it is."""
    first = compute()
    with _other_attention(module) as possible:
        noise = typical(first - compute()) if possible else math.inf
    return min(max(FLOOR, FACTOR * noise), CEILING) if math.isfinite(noise) else UNKNOWN


@contextmanager
def _other_attention(module: Any) -> Iterator[bool]:
    """Meanwhile the module computes attention by another implementation. Gives False for a module that has one only."""
    inner = module.get_base_model() if hasattr(module, "get_base_model") else module
    parts = {"": inner.config} | {name: getattr(inner.config, name, None) for name in inner.config.sub_configs}
    before = {name: part._attn_implementation for name, part in parts.items() if part is not None}
    try:
        inner.set_attn_implementation("sdpa" if before[""] == "eager" else "eager")
    except (AttributeError, ImportError, ValueError):
        yield False
        return
    try:
        yield True
    finally:
        inner.set_attn_implementation(before)


@dataclass(frozen=True)
class Probe:
    """What the trainer's weights compute of a fixed text."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    """Natural, of every id but the first."""
    rounding: float | None
    """In a 16-bit type `allowed_rounding`; None in float32."""


def measure(module: Any, ids: Sequence[int], dtype: torch.dtype) -> Probe:
    """The probe by a module that is computed in this type. Ranks that share it call this together."""
    found, rounds = module_logprobs(module, ids), dtype in (torch.bfloat16, torch.float16)
    rounding = allowed_rounding(module, lambda: module_logprobs(module, ids)) if rounds else None
    return Probe(list(ids), found.tolist(), rounding)


class LogprobsDifferError(EngineError):
    """An engine's log-probabilities are further from the trainer's than rounding explains."""

    apart: float
    """The distance, in nats."""
    allowed: float


def check_logprobs(
    found: Sequence[float], probe: Probe, *, owner: str, hint: str, tolerance: float | None = None
) -> float:
    """Distance of the log-probabilities of the probe's first ids to the trainer's: in float32 the greatest, else
    `typical`. Raises LogprobsDifferError, which names `owner`, if that is more than rounding, or than `tolerance`."""
    exact, wanted = probe.rounding is None, probe.logprobs[: len(found)]
    differences = torch.tensor(found, dtype=torch.float64) - torch.tensor(wanted, dtype=torch.float64)
    differences = differences.abs().nan_to_num(math.inf, math.inf)
    apart = float(differences.max()) if exact else typical(differences)
    allowed = tolerance or probe.rounding or GREATEST
    if apart <= allowed:
        return apart
    kind = "greatest difference" if exact else "mean of the smaller four fifths of differences"
    place = int(differences.argmax())
    error = LogprobsDifferError(
        f"{owner} doesn't have the trainer's weights: over {len(differences)} tokens of a fixed text the {kind} of "
        f"their log-probabilities is {apart:.3g}, more than {allowed:.3g} (token {place}: {found[place]:.5f}, and "
        f"{float(wanted[place]):.5f} by the trainer)",
        where="engine",
        hint=hint,
    )
    error.apart, error.allowed = apart, allowed
    raise error


def check_digests(found: Mapping[str, int], wanted: Mapping[str, int], *, owner: str, hint: str) -> None:
    """Raises EngineError, which names a tensor, where `owner` has others than the trainer."""
    wrong = [name for name, value in wanted.items() if found.get(name) != value]
    if wrong:
        raise EngineError(
            f"{owner} doesn't have the trainer's weights: {len(wrong)} of {len(wanted)} tensors differ, {wrong[0]!r} "
            "among them",
            where="engine",
            hint=hint,
        )


def digests(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, int]:
    """64 bits for each tensor's bytes, computed on its device and equal on all."""
    return read_digests({name: digest(tensor.detach()) for name, tensor in tensors})


def read_digests(found: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Numbers of digests that are still on their devices. All are read together, as each reading waits for a device."""
    first = next(iter(found.values()), None)
    values = torch.stack([it.to(first.device) for it in found.values()]).tolist() if first is not None else []
    return dict(zip(found, values, strict=True))


_BLOCK = 2**18
"""Words whose sum is one number: a CPU's cache holds them."""
_BLOCKS = 128
"""Blocks that a GPU multiplies at once. A kernel for each block would be 65,000 for a model of 8B."""
_ODD = 0x1E3779B97F4A7C15
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of all words, each times an odd number that belongs to its place."""
    words = tensor.contiguous().view(-1).view(_WORDS[tensor.element_size()])
    factors = _factors(words.device)
    whole = len(words) // _BLOCK
    at_once = 1 if words.device.type == "cpu" else _BLOCKS
    parts = words[: whole * _BLOCK].view(-1, _BLOCK).split(at_once) if whole else ()
    sums = [(part * factors).sum(1) for part in parts]
    if len(rest := words[whole * _BLOCK :]):
        sums.append((rest * factors[: len(rest)]).sum(0, keepdim=True))
    blocks = torch.cat(sums) if sums else factors[:0]
    return (blocks * factors[len(factors) - len(blocks) :]).sum()


@lru_cache(4)
def _factors(device: torch.device) -> torch.Tensor:
    places = torch.arange(_BLOCK, device=device) * _ODD
    return (places ^ places >> 29) * _ODD | 1  # If they grew evenly, changes of several words could cancel out.
