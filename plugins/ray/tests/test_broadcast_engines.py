"""Weights that an engine's own processes receive: no torch model takes them in the worker."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray", reason="needs ray: pip install 'toolrl[cluster]'")
pytest.importorskip("toolrl_plugin_torch")

import torch
from broadcast_help import Model, StandsStill, Weights, Worker, train

from toolrl.config.cluster import ClusterConfig
from toolrl.errors import ConfigError, EngineError
from toolrl_plugin_ray import replica
from toolrl_plugin_ray.broadcast import WeightBroadcast
from toolrl_plugin_ray.messages import WeightUpdate
from toolrl_plugin_ray.rollout import backend
from toolrl_plugin_ray.weights import BroadcastWeights, trained
from toolrl_plugin_torch.probe import check_digests, digests
from toolrl_plugin_torch.sharding.transfer import receive


class Holder(StandsStill):
    """An engine whose two processes receive the weights, in the place of vLLM's."""

    def __init__(self) -> None:
        self.tensors: list[dict[str, Any]] = []

    async def update_weights(self, weights: Any, version: int) -> None:
        assert self.held, "weights that are half written are sampled from by no one"
        places = [replace(weights.rendezvous, rank=weights.rendezvous.rank + rank) for rank in range(2)]
        self.tensors = await asyncio.gather(*(asyncio.to_thread(dict, receive(at)) for at in places))
        for found in self.tensors:
            check_digests(digests(found.items()), weights.digests(), owner="the engine", hint="")


class Whole(Weights):
    """All tensors, under a checkpoint's names, as `given`; digests are the model's own."""

    def __init__(self, model: Any, version: int, given: dict[str, Any] | None = None) -> None:
        super().__init__(model, version)
        self.own = {f"model.{name}": tensor for name, tensor in trained(model).items()}
        self.given = given or self.own

    def tensors(self, *, merged: bool = True) -> Iterator[tuple[str, Any]]:
        return iter(self.given.items())

    def digests(self) -> dict[str, int]:
        return digests(self.own.items())

    def probe(self) -> Any:
        return "a probe"


def holding(number: int) -> Worker:
    """A worker without a model, whose engine has two processes."""
    worker = Worker(number)
    worker.engine = Holder()  # type: ignore[attr-defined]
    made = replica.PolicyReplica(None, Weights(None, 0), worker.engine, None, None, hollow=True)  # type: ignore

    async def update(update: WeightUpdate, part: WeightUpdate) -> None:
        worker.parts.append(part)
        if worker.reached is not None:
            await worker.reached()
        await made.load(pickle.loads(pickle.dumps(part)))

    worker.update = update  # type: ignore[method-assign]
    return worker


async def test_processes_of_an_engine_receive_all_weights_themselves() -> None:
    model, workers = Model(0).requires_grad_(False), [holding(number) for number in range(2)]
    broadcast = WeightBroadcast("127.0.0.1", timeout=60.0, receivers=2)
    for version in (1, 2):
        update = await broadcast.publish(Whole(model, version), version)
        await broadcast.send(update, workers)  # type: ignore[arg-type]
        for worker in workers:
            assert not worker.engine.held  # type: ignore[attr-defined]
            for found in worker.engine.tensors:  # type: ignore[attr-defined]
                assert found.keys() == {f"model.{name}" for name in trained(model)}
                assert all(torch.equal(it, model.state_dict()[name[6:]]) for name, it in found.items())
        train(model)
    weights = BroadcastWeights(None, workers[0].parts[-1])
    assert (weights.version, weights.probe()) == (2, "a probe")
    with pytest.raises(EngineError, match="holds no weights beside the engine's own"):
        weights.path()


@pytest.mark.parametrize("wrong", ["stale", "swapped"])
async def test_weights_that_are_sent_stale_or_under_anothers_name_are_found(wrong: str) -> None:
    model = Model(0)
    given = {f"model.{name}": tensor.clone() for name, tensor in trained(model).items()}
    one, other = "model.layers.1.weight", "model.layers.2.weight"
    if wrong == "stale":
        model.layers[1].weight.data[3, 3] += 1e-7
    else:
        given[one], given[other] = given[other], given[one]
    broadcast = WeightBroadcast("127.0.0.1", timeout=60.0, receivers=2)
    update = await broadcast.publish(Whole(model, 1, given), 1)
    with pytest.raises(EngineError, match=f"{1 if wrong == 'stale' else 2} of 10 tensors differ, '{one}' among them"):
        await broadcast.send(update, [holding(0)])  # type: ignore[list-item]


def test_nccl_is_for_gpus_of_their_own() -> None:
    def chosen(device: str, receiving: int, **settings: Any) -> str:
        return backend(ClusterConfig(**settings), device, receiving)

    assert chosen("cuda:0", 2, worker_gpus=2) == "nccl"
    assert chosen("cuda:0", 2, worker_gpus=2, weight_backend="gloo") == "gloo"
    for device, gpus, receiving in (("cpu", 1, 1), ("cuda", 0.5, 1), ("cuda", 1, 0)):
        assert chosen(device, receiving, worker_gpus=gpus) == "gloo"
        with pytest.raises(ConfigError, match="weight_backend: nccl needs a trainer on a GPU"):
            chosen(device, receiving, worker_gpus=gpus, weight_backend="nccl")
