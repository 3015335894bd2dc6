"""Routes through a mixture of experts: which experts computed a token in each layer, recorded and replayed.

An engine and a trainer round differently, so where scores are close their routers may choose different experts, and the
log-probabilities differ. Rollout routing replay (R3, arXiv 2510.11370) records the experts that the engine took and
forces the trainer's routers to them. Their weights come from the trainer's own scores, so routers still learn.

A router is called as it is; only its `topk` is answered with the given experts. So whatever it does before and behind
(softmax, normalisation, scale) stays the model's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from toolrl.errors import ConfigError, EngineError


class Routers:
    """The routers of a model, which has L of them, each of which chooses K experts for a token."""

    def __init__(self, model: Any, where: str) -> None:
        """Raises ConfigError for a model whose routers can't be used. `where`: the option's path in the config."""
        self._routers = [part for part in model.modules() if type(part).__name__.endswith("TopKRouter")]
        shapes = set()
        for router in self._routers:
            chosen = _Choice(None)
            with torch.no_grad(), chosen:
                scores = router(router.weight.new_zeros(1, router.weight.shape[-1]))[0]
            shapes.add((scores.shape[-1], *(indices.shape[-1] for indices in chosen.indices)))
        if len(shapes) != 1 or len(next(iter(shapes))) != 2:
            raise ConfigError(
                f"the routes of {type(model).__name__} can't be recorded or replayed: of its {len(self._routers)} "
                "routers each must call topk once, over one number of experts",
                where=where,
                hint="Leave the option out. It is for models with experts, such as Qwen3-MoE and Mixtral.",
            )
        ((experts, self._each),) = shapes
        self.dtype = torch.uint8 if experts <= 256 else torch.int16
        """Of an expert's number in `Generation.routes`."""

    @property
    def shape(self) -> tuple[int, int]:
        """(L, K)."""
        return len(self._routers), self._each

    @contextmanager
    def recording(self) -> Iterator[list[torch.Tensor]]:
        """The chosen experts of each router that is called meanwhile, `[tokens, K]`, in the order of the calls."""
        found: list[torch.Tensor] = []
        with self._patched([_Choice(None, found)] * len(self._routers)):
            yield found

    @contextmanager
    def replaying(self, routes_NLK: torch.Tensor) -> Iterator[None]:
        """Have the routers choose these experts for the N tokens of a forward pass; −1 leaves a token to the router.
        Covers the backward pass too, which with gradient checkpointing computes layers again."""
        with self._patched([_Choice(routes_NLK[:, layer]) for layer in range(len(self._routers))]):
            yield

    @contextmanager
    def _patched(self, choices: Sequence[_Choice]) -> Iterator[None]:
        for router, choice in zip(self._routers, choices, strict=True):
            router.forward = partial(_within, choice, router.forward)
        try:
            yield
        finally:
            for router in self._routers:
                del router.forward

    def decode(self, routes: bytes, tokens: int) -> torch.Tensor:
        """The routes of the first tokens of an episode, int16 `[tokens, L, K]`. Raises EngineError where there are
        fewer."""
        layers, each = self.shape
        size = tokens * layers * each * self.dtype.itemsize
        if len(routes) < size:
            raise EngineError(
                f"trainer.router_replay: an episode has {len(routes)} bytes of routes, and {size} are needed",
                hint="Use an engine that records them: engine: {use: transformers, options: {return_routes: true}}.",
            )
        flat = torch.frombuffer(bytearray(routes[:size]), dtype=self.dtype) if size else torch.zeros(0)
        return flat.view(tokens, layers, each).to(torch.int16)


class _Choice(TorchFunctionMode):  # type: ignore[misc]
    """Answers `topk` with the given experts `[N, K]`, and collects what was chosen."""

    def __init__(self, given: torch.Tensor | None, indices: list[torch.Tensor] | None = None) -> None:
        super().__init__()
        self._given = given
        self.indices = [] if indices is None else indices

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        if function not in (torch.topk, torch.Tensor.topk):
            return found
        chosen = found[1]
        if self._given is None:
            self.indices.append(chosen)
            return found
        given = self._given.to(chosen)
        chosen = torch.where(given >= 0, given, chosen)
        return torch.return_types.topk((args[0].gather(-1, chosen), chosen))


def _within(choice: _Choice, forward: Any, *args: Any, **kwargs: Any) -> Any:
    with choice:
        return forward(*args, **kwargs)
