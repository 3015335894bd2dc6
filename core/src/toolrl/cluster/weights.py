"""Weights on their way from the trainer to the workers: in buckets, by Ray's object store or by files. See
`toolrl.cluster.broadcast` for the third way.

A bucket is some tensors in the form of safetensors. Only what is trained travels, and buffers: every worker loads the
model itself, from where the trainer did, so what is frozen is there already. Tied tensors travel once. After each
transfer the worker compares digests of all its tensors with the trainer's (`toolrl_plugin_torch.probe`).
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from toolrl.cluster.messages import Bucket, Handoff
from toolrl.errors import EngineError
from toolrl.protocols import WeightSource
from toolrl_plugin_torch.probe import check_digests, digests

BUCKET_BYTES = 256 * 2**20
"""What is serialised at once; a tensor that is larger is a bucket of its own."""

Put = Callable[[bytes], Any]
"""Puts bytes into an object store: gives a reference, which can be awaited there for a buffer with them."""


class StoreCourier:
    """Weights through an object store. A version's objects are freed with the last reference to them."""

    def __init__(self, put: Put, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._put = put
        self._bucket_bytes = bucket_bytes

    async def publish(self, weights: WeightSource, version: int) -> Handoff:
        """See Courier."""
        return await asyncio.to_thread(self._publish, weights, version)

    def close(self) -> None:
        """See Courier."""

    def _publish(self, weights: WeightSource, version: int) -> Handoff:
        # Its own tensors, and not the whole model of an adapter: a worker's module has the same ones.
        module = weights.module()
        pieces = buckets(module.state_dict(), frozen_names(module), self._bucket_bytes)
        return Handoff(
            version,
            tuple(self._bucket(version, number, save(tensors)) for number, tensors in enumerate(pieces)),
            digests(distinct(module.state_dict())),
        )

    def _bucket(self, version: int, number: int, data: bytes) -> Bucket:
        return Bucket(len(data), data=self._put(data))


class FileCourier(StoreCourier):
    """Weights through a folder that all nodes share; it keeps those of two versions."""

    def __init__(self, folder: Path, bucket_bytes: int = BUCKET_BYTES) -> None:
        super().__init__(bytes, bucket_bytes)
        self._folder = folder
        self._written: list[Path] = []

    def close(self) -> None:
        """See Courier."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _publish(self, weights: WeightSource, version: int) -> Handoff:
        place = self._folder / f"version-{version}"
        shutil.rmtree(place, ignore_errors=True)  # Of a run that was killed.
        place.mkdir(parents=True)
        handoff = super()._publish(weights, version)
        # A worker that is starting may still read those of the version before.
        self._written = [*(it for it in self._written if it != place), place]
        for old in self._written[:-2]:
            shutil.rmtree(old, ignore_errors=True)
        del self._written[:-2]
        return handoff

    def _bucket(self, version: int, number: int, data: bytes) -> Bucket:
        path = self._folder / f"version-{version}" / f"bucket-{number:03d}.safetensors"
        path.write_bytes(data)
        return Bucket(len(data), path=str(path))


def frozen_names(module: Any) -> set[str]:
    """Parameters that no update changes, a tied one under each of its names."""
    every = module.named_parameters(remove_duplicate=False)
    return {name for name, parameter in every if not parameter.requires_grad}


def distinct(tensors: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Those of one storage once."""
    seen: set[tuple[int, tuple[int, ...]]] = set()
    for name, tensor in tensors.items():
        identity = (tensor.data_ptr(), tuple(tensor.shape))
        if not tensor.numel() or identity not in seen:
            seen.add(identity)
            yield name, tensor


def buckets(tensors: Mapping[str, Any], left_out: set[str], size: int) -> Iterator[dict[str, Any]]:
    """Tensors in groups of about `size` bytes, on the CPU and contiguous; those of one storage once."""
    bucket: dict[str, Any] = {}
    held = 0
    for name, tensor in distinct({name: tensor for name, tensor in tensors.items() if name not in left_out}):
        if bucket and held + tensor.nbytes > size:
            yield bucket
            bucket, held = {}, 0
        bucket[name] = tensor.detach().cpu().contiguous()
        held += tensor.nbytes
    if bucket:
        yield bucket


async def fetch(bucket: Bucket) -> dict[str, Any]:
    """The tensors of a bucket. Raises EngineError where they can't be had."""
    if bucket.path is None:
        data = bytes(bucket.data if isinstance(bucket.data, bytes) else await bucket.data)
    else:
        try:
            data = await asyncio.to_thread(Path(bucket.path).read_bytes)
        except OSError as error:
            raise EngineError(
                f"the weights in {bucket.path!r} can't be read on a worker: {error.strerror or error}",
                where="cluster.weight_transfer",
                hint="With `file` the run's folder must be one that all nodes share; `object_store` needs none.",
            ) from error
    if len(data) != bucket.size:
        raise EngineError(f"{len(data)} bytes of weights arrived where {bucket.size} were sent", where="cluster")
    try:
        tensors: dict[str, Any] = load(data)
    except SafetensorError as error:
        raise EngineError(f"the weights that arrived are none: {error}", where="cluster") from error
    return tensors


async def receive(handoff: Handoff, module: Any) -> None:
    """Write weights into a module's own tensors. Raises EngineError where they don't fit or aren't whole."""
    writing = Writing(module)
    for bucket in handoff.buckets:
        writing.write(await fetch(bucket))
    writing.check_whole()


class Writing:
    """Tensors on their way into a module's own."""

    def __init__(self, module: Any) -> None:
        self._own: dict[str, Any] = module.state_dict()
        self._frozen = frozen_names(module)
        self._got: set[int] = set()

    def write(self, tensors: Mapping[str, Any]) -> None:
        """Copy these. Raises EngineError where the module has no such tensors."""
        for name, tensor in tensors.items():
            target = self._own.get(name)
            if target is None or target.shape != tensor.shape:
                found = "no such tensor" if target is None else f"one of shape {tuple(target.shape)}"
                raise EngineError(
                    f"the trainer sent {name!r} of shape {tuple(tensor.shape)}, and the worker's model has {found}",
                    where="model.path",
                    hint="Every node must load the same model with the same transformers.",
                )
            with torch.no_grad():
                target.copy_(tensor)
            self._got.add(target.data_ptr())

    def check_whole(self) -> None:
        """Raises EngineError where a tensor that is trained was never written."""
        missing = [
            name
            for name, it in self._own.items()
            if name not in self._frozen and it.numel() and it.data_ptr() not in self._got
        ]
        if missing:
            raise EngineError(
                f"the trainer's weights lack {len(missing)} tensors, {missing[0]!r} among them", where="cluster"
            )


def verify(handoff: Handoff, module: Any) -> None:
    """Raises EngineError where a module's tensors, frozen ones too, aren't bit for bit the trainer's."""
    check_digests(
        digests(distinct(module.state_dict())),
        handoff.digests,
        who=f"after a transfer of version {handoff.version} a rollout worker",
        hint="Every node must load the same model. With cluster.weight_transfer: file a shared file system may give "
        "out old or broken files; object_store needs none.",
    )
