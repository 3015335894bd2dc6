"""A small model, and workers in this process that receive its weights."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import torch
from torch import nn

from toolrl_plugin_ray.messages import WeightUpdate
from toolrl_plugin_ray.weights import trained, verify, write
from toolrl_plugin_torch.probe import digests
from toolrl_plugin_torch.sharding.transfer import receive

NEVER = 3600.0


class StandsStill:
    """The part of an engine that counts in `held` by how many it is held."""

    held = 0

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        self.held += 1
        yield
        self.held -= 1


class Model(nn.Module):
    """Tied weights, a buffer, and some layers."""

    def __init__(self, seed: int, layers: int = 3, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.rand(3))
        self.to(dtype)


class Weights:
    def __init__(self, model: Any, version: int) -> None:
        self.model = model
        self.version = version

    def trained_tensors(self) -> Iterator[tuple[str, Any]]:
        return ((name, tensor.detach()) for name, tensor in trained(self.model).items())

    def frozen_digests(self) -> dict[str, int]:
        return digests((name, it) for name, it in self.model.named_parameters() if not it.requires_grad)

    def close(self) -> None:
        pass


class Worker:
    """A worker's supervisor and its model, in this process; `reached` is awaited before a message takes effect."""

    def __init__(self, number: int, model: Any = None) -> None:
        self.number = number
        self.state = "ready"
        self.handle = object()
        self.model = model if model is not None else Model(number + 1)
        self.parts: list[WeightUpdate] = []
        self.reached: Callable[[], Awaitable[None]] | None = None

    async def update(self, update: WeightUpdate, part: WeightUpdate) -> None:
        self.parts.append(part)
        if self.reached is not None:
            await self.reached()
        part = pickle.loads(pickle.dumps(part))
        write(await asyncio.to_thread(dict, receive(part.place)), self.model)
        verify(part, self.model)


def train(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(it, other.state_dict()[name]) for name, it in one.state_dict().items())
