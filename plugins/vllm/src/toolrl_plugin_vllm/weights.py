"""How a `WeightSource` becomes what vLLM computes with: tensor by tensor, and never by a file.

vLLM in the trainer's process takes the trainer's tensors as they are. Processes that hold its model elsewhere, or in a
rollout worker, get them in flat buckets by a broadcast (`toolrl_plugin_torch.sharding.transfer`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from toolrl.protocols import WeightSource
from toolrl_plugin_vllm import build

if TYPE_CHECKING:
    from toolrl_plugin_torch.sharding.collective_group import Rendezvous

PATIENCE = 600.0
"""Seconds that a transfer may stand still."""
_HERE = "127.0.0.1"
_REPORT = "Tensors were changed or left out on their way: resume the run, and report it if it happens again."


class WeightTransfer:
    """All tensors, a LoRA adapter merged in."""

    def __init__(self) -> None:
        self._received: list[Mapping[str, int]] = []
        """Digests by each of vLLM's processes."""

    def load(self, engine: Any, weights: WeightSource) -> None:
        """Put weights into vLLM's engine, in place; its caches are the caller's to empty."""
        at: Rendezvous | None = getattr(weights, "rendezvous", None)
        if at is not None:  # A rollout worker's: the trainer sends them to vLLM's own processes.
            self._received = _whole(engine.collective_rpc("toolrl_receive", args=(at,)))
            return
        tensors = weights.tensors()
        if build.in_process(engine):
            self._received = engine.collective_rpc("toolrl_load", args=(tensors,))
            return
        from toolrl_plugin_torch.sharding.collective_group import Rendezvous
        from toolrl_plugin_torch.sharding.rendezvous import listen
        from toolrl_plugin_torch.sharding.transfer import buckets, send

        store = [listen(_HERE, 0, timedelta(seconds=PATIENCE))]
        size = 1 + int(engine.vllm_config.parallel_config.world_size)
        at = Rendezvous(_HERE, store[0].port, 1, size, PATIENCE)
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(send, replace(at, rank=0), buckets(tensors))
            # Where it fails the processes notice by the store.
            sending.add_done_callback(lambda it: store.clear() if it.exception() else None)
            try:
                self._received = _whole(engine.collective_rpc("toolrl_receive", args=(at,)))
            except Exception:
                store.clear()
                sending.result()  # Raises the cause, where it is here.
                raise
            sending.result()

    def check(self, weights: WeightSource, who: str) -> None:
        """Raises EngineError if vLLM received others than the trainer's. Merged tensors have no digest."""
        from toolrl_plugin_torch.probe import check_digests

        own = weights.digests()
        for found in self._received:
            wanted = own if found.keys() <= own.keys() else {name: own[name] for name in found if name in own}
            check_digests(found, wanted, owner=who, hint=_REPORT)


def _whole(answers: Sequence[Any]) -> list[Mapping[str, int]]:
    """Digests by each of vLLM's processes. Raises what broke the transfer for one of them."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return list(answers)
