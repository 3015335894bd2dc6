"""What attacks are after: files, servers, a process, descriptors; and whether any of it was touched."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

_VICTIM = """
import ctypes, sys, time
secret = ctypes.create_string_buffer(sys.stdin.readline().strip().encode())
print(ctypes.addressof(secret), flush=True)
time.sleep(600)
"""


class Victim:
    """A process outside, with a secret in its memory and one in its environment."""

    def __init__(self, secret: str) -> None:
        environment = {"SECRET": secret, "PATH": os.environ["PATH"]}
        command = [sys.executable, "-c", _VICTIM, "victim-of-attacks"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{secret}\n".encode())
        self._process.stdin.flush()
        self.address = int(self._process.stdout.readline())
        self.pid = self._process.pid
        self.before = self.state()

    def state(self) -> tuple[object, ...]:
        """What others may not change."""
        stat = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines())
        return (
            stat[0] in "tTZX",
            stat[16],  # nice
            status["TracerPid"].strip(),
            Path(f"/proc/{self.pid}/oom_score_adj").read_text(),
            resource.prlimit(self.pid, resource.RLIMIT_NOFILE),
            tuple(sorted(os.sched_getaffinity(self.pid))),
        )

    def was_touched(self) -> bool:
        """True where it is dead, stopped, traced, or runs under other terms."""
        if self._process.poll() is not None:
            return True
        with suppress(OSError):
            return self.state() != self.before
        return True

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class World:
    """Everything outside that attacks know of. Made on a running event loop, closed on every path."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="toolrl-escape-"))
        self.folder.chmod(0o755)
        self.secret = secrets.token_hex(16)
        self.won = secrets.token_hex(16)
        self.mark = "x" + secrets.token_hex(6)
        self.planted = f"planted_{secrets.token_hex(6)}"
        self._contacts = 0
        self._servers: list[asyncio.AbstractServer | socket.socket] = []
        self.victim: Victim | None = None
        self._shared_memory = -1
        self._open_file = -1

    async def start(self) -> None:
        """Put everything in place."""
        self._write_files()
        unlinked = self.folder / "unlinked"
        unlinked.write_text(self.secret)
        self._open_file = os.open(unlinked, os.O_RDONLY)
        unlinked.unlink()
        self._shared_memory = _share(self.secret.encode())
        self.victim = Victim(self.secret)
        await self._listen()
        self._before = self._files()

    def _write_files(self) -> None:
        for name in ("public", "private"):
            (self.folder / name).write_text(self.secret)
        (self.folder / "private").chmod(0o600)
        for_all = self.folder / "for_all"
        for_all.write_text("")
        for_all.chmod(0o666)
        os.setxattr(for_all, "user.secret", self.secret.encode())
        (self.folder / "readable").mkdir()
        for name in ("canary", "readable/canary"):
            (self.folder / name).write_text("canary\n")
        (self.folder / "module_outside.py").write_text(f"secret = {self.secret!r}\n")

    async def _listen(self) -> None:
        def contact(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._contacts += 1
            writer.write(self.secret.encode())
            writer.close()

        server = await asyncio.start_server(contact, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        path = await asyncio.start_unix_server(contact, str(self.folder / "socket"))
        abstract = await asyncio.start_unix_server(contact, f"\0{self.mark}")
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind(("127.0.0.1", 0))
        self.datagram_port = datagrams.getsockname()[1]
        abstract_datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        abstract_datagrams.bind(f"\0{self.mark}-datagrams")
        for one in (datagrams, abstract_datagrams):
            one.setblocking(False)
            asyncio.get_running_loop().add_reader(one, self._datagram, one)
        self._servers = [server, path, abstract, datagrams, abstract_datagrams]

    def _datagram(self, listener: socket.socket) -> None:
        with suppress(OSError):
            if listener.recv(100):
                self._contacts += 1

    def filled(self, code: str, bound: int) -> str:
        """An attack's code with its marks replaced."""
        assert self.victim is not None
        marks = {
            "WORLD": str(self.folder),
            "WON": self.won,
            "MARK": self.mark,
            "PLANTED": self.planted,
            "VICTIM": str(self.victim.pid),
            "ADDRESS": str(self.victim.address),
            "SECRET_SIZE": str(len(self.secret)),
            "DATAGRAM_PORT": str(self.datagram_port),
            "PORT": str(self.port),
            "OUTSIDE": str(os.getpid()),
            "DESCRIPTOR": str(self._open_file),
            "SEGMENT": str(self._shared_memory),
            "BOUND": str(bound),
        }
        for mark, value in marks.items():
            code = code.replace(f"@{mark}@", value)
        return code

    def has_won(self, text: str) -> bool:
        """True where a call's text says that its attack went through."""
        return self.won in text or self.secret in text

    async def damage(self) -> list[str]:
        """What was touched since the last look; it is mended, so that the next attack finds a whole world."""
        await asyncio.sleep(0.03)  # a signal may be on its way, a server have something to take
        found = [f"a server was reached {self._contacts} times"] if self._contacts else []
        self._contacts = 0
        assert self.victim is not None
        if self.victim.was_touched():
            found.append("the process outside was touched")
            self.victim.end()
            self.victim = Victim(self.secret)
        after = self._files()
        changed = sorted(
            str(path) for path in after.keys() | self._before.keys() if after.get(path) != self._before.get(path)
        )
        if changed:
            found.append(f"files were touched: {', '.join(changed)}")
            self._mend()
        return found

    def _files(self) -> dict[str, tuple[object, ...]]:
        files: dict[str, tuple[object, ...]] = {}
        for path in sorted(self.folder.rglob("*")):
            if path.is_socket():
                continue
            info = path.lstat()
            text = path.read_text() if path.is_file() else ""
            files[str(path.relative_to(self.folder))] = (text, info.st_mode, info.st_nlink, info.st_mtime_ns)
        return files

    def _mend(self) -> None:
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif not path.is_socket():
                path.unlink()
        self._write_files()
        self._before = self._files()

    def lingering(self) -> list[int]:
        """Processes with the mark as their name."""
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and (entry / "comm").read_text().strip() == self.mark:
                    found.append(int(entry.name))
        return found

    def end_lingering(self) -> None:
        """End what an attack left, however often it starts itself anew."""
        for _ in range(200):
            left = self.lingering()
            if not left:
                return
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        for server in self._servers:
            if isinstance(server, socket.socket):
                asyncio.get_running_loop().remove_reader(server)
            server.close()
        if self.victim is not None:
            self.victim.end()
        if self._shared_memory >= 0:
            _LIBC.shmctl(self._shared_memory, 0, None)
        if self._open_file >= 0:
            os.close(self._open_file)
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in (f"/tmp/{self.planted}.py", f"/dev/shm/{self.planted}"):
            Path(name).unlink(missing_ok=True)


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.shmat.restype = ctypes.c_void_p


def _share(data: bytes) -> int:
    """A System V segment with this in it; its number."""
    number = _LIBC.shmget(0, 4096, 0o1600)
    if number < 0:
        raise OSError(ctypes.get_errno(), "shmget")
    address = _LIBC.shmat(number, None, 0)
    ctypes.memmove(address, data, len(data))
    _LIBC.shmdt(ctypes.c_void_p(address))
    return int(number)
