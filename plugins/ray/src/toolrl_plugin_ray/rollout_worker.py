"""A rollout worker: an engine and toolsets of its own, which sample the groups that the driver deals out.

It is a plain class whose methods Ray calls in the worker's process, all on one event loop. `poll` waits for something
to report. One semaphore bounds the episodes in flight of all groups, so that the place of a finished episode goes to
the next group at once.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import pickle
import platform
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolrl.errors import ToolrlError
from toolrl_plugin_ray.messages import GroupOrder, WeightUpdate, WorkerReport, WorkerSpec, pickled, portable

if TYPE_CHECKING:
    from toolrl_plugin_ray.replica import PolicyReplica

MOST_LOG_LINES = 200
"""Of one report; the worker's own log has all."""

_log = logging.getLogger(__name__)


class RolloutWorker:
    """One worker. `start` first; then groups may be sampled."""

    def __init__(self) -> None:
        self._report = WorkerReport()
        self._news = asyncio.Event()
        self._groups: dict[int, asyncio.Task[Any] | None] = {}
        self._stack = AsyncExitStack()
        self._replica: PolicyReplica | None = None
        self._gate: asyncio.Semaphore | None = None

    async def start(self, spec: WorkerSpec, update: WeightUpdate) -> dict[str, Any]:
        """Build and start everything, with these weights: the process, for `toolrl status`. Raises what a component
        raises."""
        self.log_to(spec.log_path)
        _log.info("rollout worker %d starts: process %d on %s", spec.number, os.getpid(), platform.node())
        try:
            _enter(spec.cwd)
            self._replica = await self._stack.enter_async_context(self.build(spec, update))
        except Exception as error:  # noqa: BLE001 - whatever a component raises
            await self._stack.aclose()
            raise portable(error) from None
        self._gate = self._replica.runner.gate()
        return {"pid": os.getpid(), "node": platform.node()}

    async def sample(self, packed: bytes) -> bytes:
        """A group's episodes, pickled, of a pickled GroupOrder. Raises what leaves the group."""
        assert self._replica is not None, "it was started"
        assert self._gate is not None, "it was started"
        order: GroupOrder = pickle.loads(packed)

        def ended() -> None:
            self._report.ended[order.key] = self._report.ended.get(order.key, 0) + 1
            self._news.set()

        self._groups[order.key] = asyncio.current_task()
        try:
            group = await self._replica.runner.group(
                order.task,
                order.number,
                order.group_size,
                order.limits,
                round_id=order.round_id,
                gate=self._gate,
                training=order.training,
                ended=ended,
            )
            hint = (
                "What tools and rewards leave in an episode (notes, metrics, media) must pickle; or sample in the "
                "trainer's process: cluster.rollout_workers 0."
            )
            return pickled(group, ToolrlError(f"the episodes of {order.name} can't be sent to the driver", hint=hint))
        except Exception as error:  # noqa: BLE001 - reported to the driver
            raise portable(error) from None
        finally:
            self._groups.pop(order.key, None)

    async def drop(self, key: int) -> None:
        """Stop sampling a group; returns when its episodes have left their tools."""
        task = self._groups.get(key)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def poll(self, seconds: float) -> WorkerReport:
        """Events since the last report, as soon as there are some; at the latest after so many seconds."""
        if not (self._report.ended or self._report.log):
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()
        await asyncio.sleep(0)  # What happens in the same step goes with it.
        report, self._report = self._report, WorkerReport()
        report.status = self._replica.status() if self._replica is not None else None
        return report

    async def take_weights(self, update: WeightUpdate) -> None:
        """Sample from these weights from now on."""
        assert self._replica is not None, "it was started"
        try:
            await self._replica.load(update)
        except Exception as error:  # noqa: BLE001 - whatever an engine raises
            raise portable(error) from None

    async def stop(self) -> None:
        """Cancel what goes on, and take everything down."""
        await asyncio.gather(*map(self.drop, self._groups))
        await self._stack.aclose()

    def build(self, spec: WorkerSpec, update: WeightUpdate) -> AbstractAsyncContextManager[PolicyReplica]:
        """What samples."""
        from toolrl_plugin_ray.replica import replica  # The driver doesn't need what it imports.

        return replica(spec, update)

    def log_to(self, path: Path) -> None:
        """Report this process's records, and write what it prints, and the traces of a crash, to a file. Where the
        run's folder isn't on this node, Ray's own files have it."""
        _forward_logs(self._add_log_line)
        if not path.parent.parent.is_dir():
            return
        path.parent.mkdir(exist_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        with path.open("ab", buffering=0) as file:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
        faulthandler.enable(2)

    def _add_log_line(self, line: tuple[int, str, str]) -> None:
        if len(self._report.log) < MOST_LOG_LINES:
            self._report.log.append(line)
            self._news.set()


def _enter(folder: str) -> None:
    """Relative paths mean the same as in the driver. Raises ToolrlError."""
    try:
        os.chdir(folder)
    except OSError as error:
        raise ToolrlError(
            f"the driver's folder {folder!r} isn't on the node {platform.node()!r}: {error.strerror}",
            hint="Start the run in a folder that all nodes of the cluster share.",
        ) from error


def _forward_logs(add: Callable[[tuple[int, str, str]], None]) -> None:
    """Report every record of toolrl's loggers from INFO, and of the others from WARNING."""
    loop = asyncio.get_running_loop()

    class Forward(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno < logging.WARNING and not record.name.startswith("toolrl"):
                return
            text = self.format(record)
            print(f"{record.levelname} {record.name}: {text}", file=sys.stderr, flush=True)
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(add, (record.levelno, record.name, text))

    logging.getLogger().addHandler(Forward())
    for logger in map(logging.getLogger, ("toolrl", __package__)):
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
