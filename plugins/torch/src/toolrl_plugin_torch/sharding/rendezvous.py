"""The store at which ranks meet, from the variables that torchrun sets."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

_log = logging.getLogger(__name__)


def rendezvous(rank: int, timeout: timedelta) -> dist.Store:
    """The store that the processes meet at, from the variables that torchrun sets.

    A store of the first rank's own listens at MASTER_ADDR alone. Raises RuntimeError and ValueError, as torch does.
    """
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        with suppress(OSError):  # an address of the network that isn't this machine's own
            return listen(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout)
    if rank == 0:
        _log.warning(
            "the store that ranks meet at listens on all interfaces of this host (port %s): restrict access to it",
            os.environ.get("MASTER_PORT"),
        )
    store: dist.Store = next(dist.rendezvous("env://", timeout=timeout))[0]
    return store


def listen(host: str, port: int, timeout: timedelta) -> dist.TCPStore:
    """A store in this process that listens at one address; port 0 for a free one. Raises OSError where it can't."""
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    server = socket.create_server((str(place[0]), port), family=family)
    port = int(server.getsockname()[1])
    return dist.TCPStore(
        host, port, None, True, timeout=timeout, wait_for_workers=False, master_listen_fd=server.detach()
    )
