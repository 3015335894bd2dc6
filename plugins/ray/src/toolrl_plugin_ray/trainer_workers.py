"""Trainer workers: one process for each rank, placed by Ray and supervised as `torchrun --max-restarts` does it.

The first rank is on the command's node, whose file system has the run's folder. A placement group holds the places of
the others, so that a run gets all or none. The ranks of a process group can't go on without each other: when one dies,
all end and start again with --resume. An error that a rank reports itself ends the run.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from toolrl.config.cluster import ClusterConfig
from toolrl.errors import RunStoppedError
from toolrl_plugin_ray.connection import connected, death_reason, own_address
from toolrl_plugin_ray.messages import RankEnd, RankOrder
from toolrl_plugin_ray.placement import check_room, trainer_resources
from toolrl_plugin_ray.rank_host import RankHost

GRACE_SECONDS = 15.0
"""For the other ranks to end once one has reported an error: longer than they look for another's."""
END_SECONDS = 120.0
"""For the other ranks to end once one has ended well."""
ENDED = (0, 128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit statuses of a rank that came to its end or was interrupted."""
GONE_SECONDS = 15.0
"""For a host to kill its process."""

_log = logging.getLogger(__name__)


async def train(order: RankOrder, run_dir: Path) -> int:
    """Train to the run's end: the exit status. `order` is the first rank's. Cancelling this interrupts the ranks, which
    save what is done. Raises ConfigError, and RunStoppedError where workers died too often."""
    config: ClusterConfig = order.loaded.config.cluster

    def check() -> None:
        own = ray.get_runtime_context().get_node_id()
        check_room(config, [node for node in ray.nodes() if node["Alive"]], own)

    async with connected(config, check):
        # The ranks are placed already, and the first one joins this cluster for its rollout workers.
        here = config.model_copy(update={"address": ray.get_runtime_context().gcs_address, "trainer_workers": 0})
        loaded = replace(order.loaded, config=order.loaded.config.model_copy(update={"cluster": here}))
        group, resources = None, trainer_resources(config)
        if config.trainer_workers > 1 and resources:
            group = placement_group([dict(resources)] * (config.trainer_workers - 1), strategy="PACK")
        try:
            return await _supervise(replace(order, loaded=loaded), config, run_dir, group)
        finally:
            if group is not None:
                remove_placement_group(group)


async def _supervise(order: RankOrder, config: ClusterConfig, run_dir: Path, group: PlacementGroup | None) -> int:
    """Start the ranks, and again after a death."""
    restarts = deaths = 0
    replaced, saved = _identity(run_dir), _last_checkpoint(run_dir)
    while True:
        attempt = _Attempt(config, run_dir, group)
        try:
            ended = await attempt.run(replace(order, environment={"TORCHELASTIC_RESTART_COUNT": str(restarts)}))
        finally:
            await attempt.close()
        status, death = outcome(ended)
        if death is None:
            return status
        restarts, deaths = restarts + 1, deaths + 1
        if (newest := _last_checkpoint(run_dir)) != saved:
            saved, deaths = newest, 1
        if deaths > config.trainer_restarts:
            raise RunStoppedError(
                f"{death}, and trainer workers died {deaths} times without a new checkpoint in between",
                hint="Mend the cause, or raise cluster.trainer_restarts; then go on with --resume.",
            )
        _log.warning("%s; all %d go on from the last checkpoint", death, config.trainer_workers)
        overwrite = order.overwrite and _identity(run_dir) == replaced  # Not begun yet: the older run is still there.
        order = replace(order, resume=not overwrite, overwrite=overwrite)


class _Attempt:
    """All ranks once, from placing them to their end."""

    def __init__(self, config: ClusterConfig, run_dir: Path, group: PlacementGroup | None) -> None:
        self._config = config
        self._run_dir = run_dir
        self._hosts = [self._spawn(rank, group) for rank in range(config.trainer_workers)]

    async def run(self, order: RankOrder) -> dict[int, RankEnd]:
        """How ranks ended; those that didn't in time are left out."""
        size = len(self._hosts)
        placed = await asyncio.gather(*map(self._placed, range(size)))
        if lost := {rank: end for rank, end in enumerate(placed) if end is not None}:
            return lost
        address = own_address()  # The first rank is on this node.
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
            port = probe.getsockname()[1]
        shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": address, "MASTER_PORT": str(port)}
        # Ray shows each worker its own devices only.
        shared |= {"LOCAL_RANK": "0", **order.environment}
        orders = [replace(order, rank=rank, environment={**shared, "RANK": str(rank)}) for rank in range(size)]
        ranks = {asyncio.create_task(self._run(it)): it.rank for it in orders}
        try:
            return await _ended(ranks)
        except asyncio.CancelledError:
            for host in self._hosts:
                host.signal.remote(int(signal.SIGTERM))
            await _ended(ranks)
            raise
        finally:
            for task in ranks:
                task.cancel()

    async def close(self) -> None:
        """Kill what is left; returns when the processes are gone."""
        gone = [asyncio.wait_for(asyncio.wrap_future(it.end.remote().future()), GONE_SECONDS) for it in self._hosts]
        await asyncio.gather(*gone, return_exceptions=True)
        for host in self._hosts:
            with suppress(Exception):
                ray.kill(host, no_restart=True)

    def _spawn(self, rank: int, group: PlacementGroup | None) -> Any:
        strategy: Any = "SPREAD"
        if rank == 0:
            strategy = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        elif group is not None:
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank - 1)
        kind = ray.remote(RankHost).options(
            num_cpus=self._config.trainer_cpus,
            num_gpus=self._config.trainer_gpus,
            scheduling_strategy=strategy,
            max_concurrency=4,
        )
        return kind.remote(self._config.trainer_gpus)

    async def _placed(self, rank: int) -> RankEnd | None:
        """Wait until a rank's host is there; how it ended where it is lost."""
        try:
            async with asyncio.timeout(self._config.worker_timeout):
                await self._hosts[rank].__ray_ready__.remote()
        except RayError as error:
            return RankEnd(None, death_reason(error))
        except TimeoutError:
            raise RunStoppedError(
                f"trainer worker {rank} had no place after {self._config.worker_timeout:g} seconds",
                hint="Wait for others to end, or raise cluster.worker_timeout.",
            ) from None
        return None

    async def _run(self, order: RankOrder) -> RankEnd:
        log = self._run_dir / "workers" / f"trainer-{order.rank}.log"
        try:
            async for reference in self._hosts[order.rank].run.remote(order, log, forward=order.rank == 0):
                event: tuple[bytes, bool] | RankEnd = await reference
                if isinstance(event, RankEnd):
                    return event
                data, is_error = event
                stream = sys.stderr if is_error else sys.stdout
                stream.flush()
                stream.buffer.write(data)  # Bytes: a character may be split between two pieces.
                stream.flush()
        except RayError as error:
            return RankEnd(None, death_reason(error))
        return RankEnd(None, "its host ended")


async def _ended(ranks: dict[asyncio.Task[RankEnd], int]) -> dict[int, RankEnd]:
    """How ranks end: the first, and unless it was killed those that end soon after it."""
    done, going = await asyncio.wait(ranks, return_when=asyncio.FIRST_COMPLETED)
    if going and not any(task.result().killed for task in done):
        orderly = all(task.result().status in ENDED for task in done)
        later, _ = await asyncio.wait(going, timeout=END_SECONDS if orderly else GRACE_SECONDS)
        done |= later
    return {ranks[task]: task.result() for task in done}


def outcome(ended: Mapping[int, RankEnd]) -> tuple[int, str | None]:
    """The run's exit status, or how a worker died. Raises RunStoppedError for an error that only another rank than the
    first printed."""
    first = ended.get(0)
    if first is not None and first.status == 0:
        return 0, None
    killed = [(rank, end) for rank, end in ended.items() if end.killed]
    lost = [(rank, end) for rank, end in ended.items() if end.lost_others]
    failed = {rank: end for rank, end in ended.items() if not (end.killed or end.lost_others or end.status in ENDED)}
    # A kill explains an error elsewhere, and an error explains why another rank lost one.
    if killed or (lost and not failed):
        rank, end = (killed or lost)[0]
        return 0, f"trainer worker {rank} {end.describe()}"
    if first is not None and not first.lost_others and (0 in failed or not failed):
        return first.status or 0, None
    if failed:
        rank, end = next(iter(failed.items()))
        raise RunStoppedError(f"trainer worker {rank} {end.describe()}")
    raise RunStoppedError("trainer worker 0 didn't end with the others")


def _last_checkpoint(run_dir: Path) -> str:
    return max((path.name for path in (run_dir / "checkpoints").glob("step-*")), default="")


def _identity(run_dir: Path) -> tuple[int, int] | None:
    """Of the run in this folder: another one that takes its place writes its config anew."""
    try:
        found = (run_dir / "config.yaml").stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
