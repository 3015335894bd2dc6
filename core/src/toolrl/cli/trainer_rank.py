"""A rank's process on a trainer worker: `toolrl train` for one of several, as `toolrl.cluster.trainer_host` starts it.

    python -m toolrl.cli.trainer_rank ORDERS EVENTS

The arguments are descriptors of two pipes. The process imports what a run needs, then waits for its order; when the
other end of ORDERS is closed nobody wants it any more, and it ends at once.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from toolrl.cli.output import print_error, readable
from toolrl.cluster.messages import pack_error
from toolrl.cluster.rank_report import RankReport
from toolrl.cluster.trainer_messages import Ended, TrainerOrder
from toolrl.errors import ToolrlError
from toolrl.runs.folder import RunFolder
from toolrl_plugin_torch.preload import warm

_LOCK_SECONDS = 30.0
"""For the run's folder to be free of a process that has died."""


def main(arguments: list[str]) -> int:
    descriptors = [int(word) for word in arguments]
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    orders, events = Connection(descriptors[0], writable=False), Connection(descriptors[1], readable=False)
    # Whoever started this may hold signals back.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    warm()
    try:
        order, environment = orders.recv()
    except EOFError:
        return 0
    threading.Thread(target=_end_with, args=(orders,), daemon=True).start()
    os.environ.update(environment)
    lock = threading.Lock()

    def tell(event: Any) -> None:
        with lock, suppress(OSError):  # The other end is gone, and this process about to end.
            events.send(event)

    report = RankReport(order, tell)
    ended = _ended(order, report)
    report.over()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    tell(ended)
    return 1 if ended.status is None else ended.status


def _end_with(orders: Connection) -> None:
    with suppress(EOFError, OSError):
        orders.recv()
    os._exit(1)


def _ended(order: TrainerOrder, report: RankReport) -> Ended:
    """Do it, and say how it ended."""
    try:
        return Ended(_run(order, report))
    except Exception as error:  # noqa: BLE001 - the command raises it
        text = io.StringIO()
        told = readable(error)
        if not isinstance(told, ToolrlError):
            text.write("".join(traceback.format_exception(error)))
        print_error(told, stream=text, hide=order.loaded.hide)
        return Ended(error=pack_error(error), said=order.loaded.hide(text.getvalue()))


def _run(order: TrainerOrder, report: RankReport) -> int:
    from toolrl.cli.train import run_as_worker

    os.chdir(order.cwd)
    if order.again and order.rank == 0:
        _wait_for_folder(order)
    args = argparse.Namespace(resume=order.resume, overwrite=order.overwrite, json=order.json)
    return run_as_worker(args, order, report)


def _wait_for_folder(order: TrainerOrder) -> None:
    """Until the process that wrote the run before has let go of its folder."""
    folder = RunFolder(order.log_path.parent.parent, {}, 0)
    end = time.monotonic() + _LOCK_SECONDS
    while folder.is_live() and time.monotonic() < end:
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
