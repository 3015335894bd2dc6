"""The store at which ranks meet, and the signatures of what they send each other.

Ranks send each other pickles, and a pickle can execute code. So each is signed with a token that the ranks
share: TOOLRL_TOKEN where it is set, else the content of a file that the first rank writes and that only its user can
read, in a folder that the ranks share. What isn't signed with it isn't unpickled.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import socket
import stat
import tempfile
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from toolrl.errors import ConfigError
from toolrl.loop.ranks import TOKEN, RankError

_log = logging.getLogger(__name__)

_FILE, _PREFIX = "token file", "toolrl-token-"
_DIGEST = "sha256"
_BYTES = 32
"""Of a signature."""


def rendezvous(timeout: timedelta) -> tuple[dist.Store, int, int]:
    """The store that the processes meet at, this one's rank, and their number, from the variables that torchrun sets.

    A store of the first rank's own listens at MASTER_ADDR alone. Raises RuntimeError and ValueError, as torch does.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    own = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if rank == 0 and own:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        with suppress(OSError):  # an address of the network that isn't this machine's own
            return listen(host, port, timeout), rank, size
    if rank == 0:
        _log.warning(
            "the store that ranks meet at listens on all interfaces of this host (port %s): restrict access to it",
            os.environ.get("MASTER_PORT"),
        )
    store, rank, size = next(dist.rendezvous("env://", timeout=timeout))
    return store, rank, size


def listen(host: str, port: int, timeout: timedelta) -> dist.TCPStore:
    """A store in this process that listens at one address; port 0 for a free one. Raises OSError where it can't."""
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    line = socket.create_server((str(place[0]), port), family=family)
    port = int(line.getsockname()[1])
    return dist.TCPStore(
        host, port, None, True, timeout=timeout, wait_for_workers=False, master_listen_fd=line.detach()
    )


class Signer:
    """Signs what this rank sends, and checks what others sent."""

    def __init__(self, token: bytes, rank: int) -> None:
        self._token = token
        self._rank = rank

    def sign(self, data: bytes, what: str) -> bytes:
        """`data` with a signature for this point of the run in front."""
        return self._digest(data, what, self._rank) + data

    def checked(self, signed: bytes, what: str, rank: int) -> bytes:
        """The data that this rank signed. Raises RankError for another signature, or point of the run."""
        signature, data = signed[:_BYTES], signed[_BYTES:]
        if not hmac.compare_digest(signature, self._digest(data, what, rank)):
            raise RankError(
                f"what came as rank {rank}'s isn't signed with this run's token",
                hint=f"Set {TOKEN} to the same secret for all processes; keep strangers away from the ranks' ports.",
            )
        return data

    def _digest(self, data: bytes, what: str, rank: int) -> bytes:
        signature = hmac.new(self._token, f"{rank}\0{what}\0".encode(), _DIGEST)
        signature.update(data)
        return signature.digest()


class SharedToken:
    """The token of a run's ranks. `forget` once all have it."""

    def __init__(self, store: dist.Store, rank: int, folder: Path | None) -> None:
        """Waits for the first rank, which writes into `folder`, or where it can't into that for temporary files. Raises
        ConfigError where its file isn't here and TOOLRL_TOKEN isn't set, or where that is set for one of them alone."""
        self._file: Path | None = None
        given = os.environ.get(TOKEN, "")
        if rank == 0:
            self.token = given.encode() or secrets.token_bytes(_BYTES)
            store.set(_FILE, "" if given else self._write(folder))
            return
        name = store.get(_FILE).decode()
        if bool(name) == bool(given):
            raise ConfigError(
                f"{TOKEN} is set for rank {rank} and not for the first one, or the other way round",
                hint=f"Set {TOKEN} to the same secret for all processes of the run, or for none.",
            )
        self.token = given.encode() or _read(Path(name), rank)

    def forget(self) -> None:
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _write(self, folder: Path | None) -> str:
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=_PREFIX, dir=folder)  # for this user alone
        except OSError:
            handle, name = tempfile.mkstemp(prefix=_PREFIX)
        with os.fdopen(handle, "wb") as file:
            file.write(self.token)
        self._file = Path(name).absolute()
        return str(self._file)


def _read(path: Path, rank: int) -> bytes:
    # The path comes from the store, which strangers may write to: only a file that toolrl wrote will do.
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            facts = os.fstat(handle)
            ours = facts.st_uid == os.geteuid() and stat.S_ISREG(facts.st_mode) and not facts.st_mode & 0o077
            if ours and path.name.startswith(_PREFIX) and facts.st_size == _BYTES:
                return file.read(_BYTES)
    except OSError:
        pass
    raise ConfigError(
        f"rank {rank} can't read the token that the first rank wrote to {path}",
        hint=f"Put run.dir on a file system that all hosts share, or set {TOKEN} to the same secret for all processes.",
    )
