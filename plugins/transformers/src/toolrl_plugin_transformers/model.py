"""Run a transformers model over the slot cache.

The model is called as it is (or `direct.py` in its place), with explicit positions, an explicit mask and a cache of
ours; so any decoder whose attention is full or a sliding window over earlier tokens is served. `check.py` compares
the result with a plain forward pass before the first episode. Right-aligned rows: the last token of each row stands
in the last column, whatever its length.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from toolrl.errors import EngineError
from toolrl_plugin_torch.head import probe_head, wide_linear
from toolrl_plugin_torch.routes import Routers
from toolrl_plugin_transformers.cache import CacheShape, SlotCache, StepCache
from toolrl_plugin_transformers.direct import Direct
from toolrl_plugin_transformers.images import ImageSupport, Pictures, arguments, plain

logger = logging.getLogger(__name__)
_OTHER_WINDOWS = ("window_size", "attention_window_size", "sliding_window_size", "attention_chunk_size")
"""Fields of configs, in tokens. `sliding_window` is in the masks."""
_LAYER_TYPES = {"full_attention", "sliding_attention"}


class ModelRunner:
    """A causal language model with a way to prefill and to decode rows of a `SlotCache`. For one thread at a time."""

    def __init__(self, module: Any, *, sampled_ids: int | None = None, routes: bool = False) -> None:
        config = module.config.get_text_config()
        self.module = module
        self.vocabulary = int(config.vocab_size)
        self.ids = min(sampled_ids or self.vocabulary, self.vocabulary)
        """Ids below this may be sampled: the tokenizer has no others."""
        self.max_positions: int | None = getattr(config, "max_position_embeddings", None)
        """Most tokens of a sequence; the check at start may lower it."""
        self._stay_in_window(module, config)
        self._refuse_unknown(module, config)
        self.images = ImageSupport(module)
        self.never = [token for token in self.images.never_sampled if token < self.ids]
        """Ids that may not be sampled, among those below `ids`."""
        # Computing an auxiliary loss of routers, as a checkpoint's config may ask for, fails on a mask of this form.
        given = {"logits_to_keep": 1, "output_router_logits": False}
        self._given = {name: value for name, value in given.items() if name in _arguments(module)}
        self._window, self._mixed = _windows(config)
        self._training: list[Any] = []
        self._entered = False
        self.direct = Direct.of(module)
        """Stands in for the module where it can."""
        self._direct = self.direct
        self.routers = Routers(module, "engine.options.return_routes") if routes else None
        """Where the experts of each token are recorded."""
        self.shape = self._probe_shape()
        if self.routers is not None:
            count = math.prod(self.routers.shape)
            self.shape = replace(self.shape, routes=count, routes_dtype=self.routers.dtype)
        parts = probe_head(module) if self.shape.dtype.itemsize == 2 else None
        self._parts = None if isinstance(parts, str) else parts
        """Hidden states and head, which gives logits in float32 where the model computes in 16 bits."""

    def _stay_in_window(self, module: Any, config: Any) -> None:
        """Lower `max_positions` to a window of attention that the masks here don't have. GPT-Neo's local layers have a
        mask of their own, which takes all rows of a pass to end at one position."""
        windows = {name: getattr(config, name, None) for name in _OTHER_WINDOWS}
        name, width = min(
            ((name, width) for name, width in windows.items() if width), key=lambda it: it[1], default=("", math.inf)
        )
        if width < (self.max_positions or math.inf):
            self.max_positions = int(width)
            logger.warning(
                "the engine takes at most %d tokens of a sequence: %s has a window of attention (%s) that the engine's "
                "masks don't have",
                width, type(module).__name__, name,
            )  # fmt: skip

    @staticmethod
    def _refuse_unknown(module: Any, config: Any) -> None:
        strange = sorted(set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES)
        problem = ""
        if getattr(module.config, "is_encoder_decoder", False):
            problem = "is an encoder-decoder"
        elif strange:
            problem = f"has layers of kind {', '.join(strange)}, which keep no key for each token"
        elif "position_ids" not in _arguments(module):
            problem = "takes no position_ids, so rows of different length can't share a step"
        if problem:
            hint = "Use an engine that serves this model (engine: vllm), or a decoder with ordinary attention."
            raise EngineError(f"{type(module).__name__} {problem}", hint=hint)
        implementation = getattr(config, "_attn_implementation", None)
        if implementation not in (None, "eager", "sdpa"):
            raise EngineError(
                f"attention implementation {implementation!r} takes no mask of its caller's",
                where="model.attention",
                hint="Set model.attention to sdpa or eager.",
            )

    @property
    def device(self) -> torch.device:
        return next(iter(self.module.parameters())).device

    def enter(self) -> None:
        """Switch dropout and gradient checkpointing off, for as long as the engine samples."""
        if self._entered:
            return
        self._entered = True
        self._direct = self.direct if self.direct is not None and self.direct.usable else None
        if self._direct is not None:
            self._direct.enter()
        self._training = [module for module in self.module.modules() if module.training]
        for module in self._training:
            module.training = False

    def leave(self) -> None:
        """Put the module back into the mode it was in."""
        if not self._entered:
            return
        self._entered = False
        if self._direct is not None:
            self._direct.leave()
        for module in self._training:
            module.training = True
        self._training = []

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Meanwhile the module is in the mode that the engine samples in."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    @contextmanager
    def small_window(self, width: int) -> Iterator[bool]:
        """Meanwhile sliding windows have this width, in tokens. Gives False for a model without a wider one, or whose
        masks don't follow from its config."""
        config, before = self.module.config.get_text_config(), self._window
        if before is None or before <= width:
            yield False
            return
        ids = torch.arange(2 * width, device=self.device)[None] % self.vocabulary
        with self.sampling(), torch.no_grad():
            wide = self.module(input_ids=ids, use_cache=False).logits
            self._window = config.sliding_window = width
            try:
                yield not torch.equal(wide, self.module(input_ids=ids, use_cache=False).logits)
            finally:
                self._window = config.sliding_window = before

    def prefill(
        self,
        slots: SlotCache,
        first: int,
        rows: Sequence[Sequence[int]],
        cached: Sequence[int],
        pictures: Sequence[Pictures] = (),
    ) -> Tensor:
        """Compute new tokens of rows in the slots `first …`, after `cached[i]` tokens that slot i holds already.
        `pictures`: the images of each row's whole prompt; ids may be marked ones.

        Gives the logits `[B, V]` after each row's last token.
        """
        device = slots.shape.device
        width = max(map(len, rows))
        input_ids = [[0] * (width - len(row)) + list(map(plain, row)) for row in rows]
        starts = torch.tensor([have + len(row) - width for row, have in zip(rows, cached, strict=True)], device=device)
        positions_BT = starts[:, None] + torch.arange(width, device=device)
        padding_BT = positions_BT < torch.tensor(cached, device=device)[:, None]
        columns_BT = positions_BT.masked_fill(padding_BT, slots.columns)
        positions_BT = positions_BT.masked_fill(padding_BT, 0)
        length = max(have + len(row) for row, have in zip(rows, cached, strict=True))
        ids_BT = torch.tensor(input_ids, device=device)
        if not any(picture.media for picture in pictures):
            return self._forward(slots, first, ids_BT, positions_BT, columns_BT, length)
        ends = [(have, have + len(row)) for row, have in zip(rows, cached, strict=True)]
        shown = [item for picture, end in zip(pictures, ends, strict=True) for item in picture.within(*end)]
        rope_3BT = self._rope(pictures, ends, width) if self.images.three else None
        images = arguments(shown, device)
        return self._forward(slots, first, ids_BT, positions_BT, columns_BT, length, rope_3BT, images)

    def _rope(self, pictures: Sequence[Pictures], ends: Sequence[tuple[int, int]], width: int) -> Tensor:
        rope_3BT = torch.zeros((3, len(pictures), width), dtype=torch.int64)
        for row, (picture, (start, end)) in enumerate(zip(pictures, ends, strict=True)):
            rope_3BT[:, row, width - (end - start) :] = picture.positions(start, end)
        return rope_3BT.to(self.device)

    def decode(
        self,
        slots: SlotCache,
        ids_B: Tensor,
        positions_B: Tensor,
        length: int,
        shifts_B: Tensor | None = None,
        shared: int = 0,
    ) -> Tensor:
        """One more token for each of the first B slots; `length` columns hold all of them. `shifts_B`: what is to be
        added to a row's column for its position. `shared`: how many tokens all rows have in common at the start, all
        of them computed before. Gives logits `[B, V]`."""
        positions_B1 = positions_B[:, None]
        rope_3B1 = (positions_B + shifts_B)[None, :, None].expand(3, -1, -1) if shifts_B is not None else None
        ids_B1 = ids_B[:, None]
        return self._forward(slots, 0, ids_B1, positions_B1, positions_B1, length, rope_3B1, None, shared)

    def _forward(
        self,
        slots: SlotCache,
        first: int,
        ids_BT: Tensor,
        positions_BT: Tensor,
        columns_BT: Tensor,
        length: int,
        rope_3BT: Tensor | None = None,
        images: Mapping[str, Tensor] | None = None,
        shared: int = 0,
    ) -> Tensor:
        mask = self._mask(positions_BT, length)
        if self._direct is not None:
            assert isinstance(mask, Tensor)
            # In 16 bits the kernels round less inside than several steps do.
            shared = shared if self.shape.dtype.itemsize > 2 else 0
            return self._direct(slots, first, ids_BT, positions_BT, columns_BT, mask, shared)
        cache = StepCache(slots, first, ids_BT.shape[0], length, slots.write_index(first, columns_BT))
        inputs = {
            "input_ids": ids_BT,
            "attention_mask": mask,
            "position_ids": positions_BT if rope_3BT is None else rope_3BT,
            "past_key_values": cache,
            "use_cache": True,
            **(images or {}),
        }
        with nullcontext() if self.routers is None else self.routers.recording() as routes:
            logits = self._logits(inputs)
        if routes is not None:
            slots.write_routes(first, columns_BT, routes)
        return logits

    def _logits(self, inputs: dict[str, Any]) -> Tensor:
        """Of each row's last token `[B, V]`."""
        if self._parts is not None:
            base, head, transform = self._parts
            return transform.apply_(wide_linear(base(**inputs)[0][:, -1], head.weight, head.bias, torch.float32))
        logits: Tensor = self.module(**inputs, **self._given).logits[:, -1]
        return logits

    def _mask(self, positions_BT: Tensor, length: int) -> Tensor | dict[str, Tensor]:
        """Additive masks `[B, 1, T, length]`: a token sees its own column and those before it, in its window."""
        column_L = torch.arange(length, device=positions_BT.device)
        query_B1T1 = positions_BT[:, None, :, None]
        later = column_L > query_B1T1
        if self._window is None:
            return self._hiding(later)
        windowed = self._hiding(later | (column_L <= query_B1T1 - self._window))
        if not self._mixed:
            return windowed
        return {"full_attention": self._hiding(later), "sliding_attention": windowed}

    def _hiding(self, hidden: Tensor) -> Tensor:
        # Filled in: `where` with a number copies it to a GPU first, and the processor waits for that at each step.
        dtype = self.shape.dtype
        return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, torch.finfo(dtype).min)

    def _probe_shape(self) -> CacheShape:
        """Run two tokens and see what the layers want to keep."""
        probe = _ProbeCache()
        ids = torch.zeros((1, 2), dtype=torch.long, device=self.device)
        positions = torch.arange(2, device=self.device)[None]
        parameter = next(iter(self.module.parameters()))
        mask: Any = torch.zeros((1, 1, 2, 2), dtype=parameter.dtype, device=self.device)
        if self._mixed:
            mask = {"full_attention": mask, "sliding_attention": mask}
        with self.sampling(), torch.no_grad():
            self.module(
                input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=probe, use_cache=True,
                **self._given,
            )  # fmt: skip
        return probe.shape(type(self.module).__name__)


class _ProbeCache(StepCache):
    """Notes the shapes that a model hands to its cache."""

    def __init__(self) -> None:
        super().__init__(None, 0, 1, 2, torch.zeros(0))  # type: ignore[arg-type]  # never written to
        self._seen: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self._seen[layer_idx] = (key_states, value_states)
        return key_states, value_states

    def shape(self, model: str) -> CacheShape:
        kinds = {(k.shape[1], k.shape[3], v.shape[3], k.dtype, k.device) for k, v in self._seen.values()}
        if len(kinds) != 1 or sorted(self._seen) != list(range(len(self._seen))):
            raise EngineError(
                f"{model}: its layers keep keys of different shapes, or none: {sorted(map(str, kinds)) or 'none'}",
                hint="Use an engine that serves this model (engine: vllm).",
            )
        heads, key_dim, value_dim, dtype, device = kinds.pop()
        return CacheShape(len(self._seen), heads, key_dim, value_dim, dtype, device)


def _arguments(module: Any) -> set[str]:
    """Names of the arguments of a model's forward; an adapter around it passes on what it doesn't name."""
    base = module.get_base_model() if hasattr(module, "get_base_model") else module
    return set(inspect.signature(base.forward).parameters)


def _windows(config: Any) -> tuple[int | None, bool]:
    """(width of the sliding window or None, whether layers with and without it are mixed)."""
    types = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if types == {"full_attention"} or window is None:
        return None, False
    return int(window), len(types) > 1
