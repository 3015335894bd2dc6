"""One rank's process: `toolrl train` with the config that its host sends on standard input.

    python -m toolrl_plugin_ray.rank

The process ends at once when the other end of standard input is closed: its host is gone.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from typing import BinaryIO

from toolrl.cli.main import run_command
from toolrl_plugin_ray.messages import RankOrder


def main() -> int:
    """The command's exit status."""
    # What tools start must not read from the host.
    host = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    order: RankOrder = pickle.load(host)
    threading.Thread(target=_end_with_host, args=(host,), daemon=True).start()
    os.environ.update(order.environment)
    os.chdir(order.cwd)
    return run_command(
        "train", loaded=order.loaded, resume=order.resume, overwrite=order.overwrite, json=order.json, silent=True
    )


def _end_with_host(host: BinaryIO) -> None:
    host.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
