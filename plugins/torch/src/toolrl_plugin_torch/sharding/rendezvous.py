"""The store at which ranks meet, and the token that they sign with what they send each other.

Ranks send each other pickles, and a pickle can execute code. So each is signed with a token that the ranks
share: TOOLRL_TOKEN where it is set, else the content of a file that the first rank writes and that only its user can
read, in a folder that the ranks share. Unsigned bytes are never unpickled.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from toolrl.errors import ConfigError
from toolrl.loop.ranks import TOKEN

_log = logging.getLogger(__name__)

_FILE = "token file"
"""Key of the store."""
_BYTES = 32
"""Of a token."""


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


@contextmanager
def shared_token(store: dist.Store, rank: int, folder: Path | None) -> Iterator[bytes]:
    """The token of a run's ranks; leave the context once all have it. The first rank writes its file into `folder`, or
    where it can't into the folder for temporary files; the others wait for it.

    Raises ConfigError where its file isn't here and TOOLRL_TOKEN isn't set, or where that is set for one rank alone.
    """
    given = os.environ.get(TOKEN, "").encode()
    if rank == 0 and given:
        store.set(_FILE, "")
        yield given
    elif rank == 0:
        with _private_file(folder) as file:
            token = secrets.token_bytes(_BYTES)
            file.write(token)
            file.flush()
            store.set(_FILE, str(Path(file.name).absolute()))
            yield token
    else:
        name = store.get(_FILE).decode()
        if bool(name) == bool(given):
            raise ConfigError(
                f"{TOKEN} is set for rank {rank} and not for the first one, or the other way round",
                hint=f"Set {TOKEN} to the same secret for all processes of the run, or for none.",
            )
        yield given or _read(Path(name), rank)


def _private_file(folder: Path | None) -> Any:
    """A file that only this user can read, and that is deleted when it is closed."""
    with suppress(OSError):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        return tempfile.NamedTemporaryFile(prefix="toolrl-token-", dir=folder)
    return tempfile.NamedTemporaryFile(prefix="toolrl-token-")


def _read(path: Path, rank: int) -> bytes:
    # Strangers may write to the store that the path comes from: its content has to be this user's secret.
    with suppress(OSError), path.open("rb") as file:
        facts = os.fstat(file.fileno())
        if facts.st_uid == os.geteuid() and not facts.st_mode & 0o077 and facts.st_size == _BYTES:
            return file.read(_BYTES)
    raise ConfigError(
        f"rank {rank} can't read the token that the first rank wrote to {path}",
        hint=f"Put run.dir on a file system that all hosts share, or set {TOKEN} to the same secret for all processes.",
    )
