"""`toolrl report RUN --serve`: the page of a run over HTTP, with all of its episodes, while the run goes on.

Of a folder of runs, `/` is a list of them, and each has its page below `/runs/`.

The page is the one that `page.py` writes. Its rows come from the index of each file of episodes (index.py), newest
first, and an episode when it is opened. A request names a file of the run by its step and kind and an episode by its
line, never a path. Nothing can be changed over it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit

from toolrl.errors import ConfigError, DataError, ToolrlError
from toolrl.runs.episodes import MEMBER_EPISODES, EpisodeFile
from toolrl.runs.files import read_json
from toolrl.runs.folder import RunFolder
from toolrl.runs.log import NAME
from toolrl.runs.records import StoredEpisode, episode_from_json
from toolrl_common.http_server import is_loopback, refused
from toolrl_plugin_report.index import FileIndex, keep_index, make_index, name_of, read_index, read_member, stamp_of
from toolrl_plugin_report.overview import find_runs, runs_page
from toolrl_plugin_report.page import KEYS, charts_data, live_parts, no_episodes, read_runs, read_tokens, render_page
from toolrl_plugin_report.sample import Totals, script_json
from toolrl_plugin_report.view import COLUMNS, view

_log = logging.getLogger(__name__)
_NAMES = ("", "live", "search", "episode", "record")
"""What can be asked for of a run; the page itself is the empty name."""
ANSWER_CHARS = 4_000_000
"""Of rows in one answer: the page asks again for more."""


class ServedRun:
    """A run as its page asks for it, brought up to date by `refresh`."""

    def __init__(self, folder: RunFolder, compare: Sequence[RunFolder] = ()) -> None:
        self._folder = folder
        self._compare = compare
        self._lock = threading.Lock()
        self._files: dict[str, tuple[int, FileIndex]] = {}
        """By name: when it last changed, counted by `_clock`."""
        self._clock = 0
        self._searching = threading.Lock()
        self._waiting = 1
        """Files that are still to be read; 1 before it is known."""
        self._tokens: dict[int, str] = {}

    def find(self, path: str) -> tuple[ServedRun, str] | None:
        """Find what answers a path, and the name that it asks for; None if nothing does."""
        name = path.removeprefix("/")
        return (self, name) if path.startswith("/") and name in _NAMES else None

    def refresh(self) -> None:
        """Read the files that are new or have changed, newest first."""
        files = {name_of(file): file for file in reversed(self._folder.episode_store.files()) if self._inside(file)}
        for name in self._files.keys() - files.keys():
            if self._files[name][1].stamp:
                self._put(name, None)
        changed = []
        for name, file in files.items():
            with contextlib.suppress(OSError):  # gone meanwhile: renamed at the end of its step
                if name not in self._files or self._files[name][1].stamp != stamp_of(file.path):
                    found = read_index(file)
                    self._put(name, found) if found else changed.append((name, file))
        live = self._folder.is_live()
        for place, (name, file) in enumerate(changed):
            self._waiting = len(changed) - place
            with contextlib.suppress(OSError):
                index = make_index(file, self._folder.config)
                self._put(name, index)
                if file.step is not None and not live:
                    keep_index(file, index)
        self._waiting = 0

    def _put(self, name: str, index: FileIndex | None) -> None:
        with self._lock:
            self._clock += 1
            self._files[name] = (self._clock, index or FileIndex([], Totals(), "[]", []))

    def _inside(self, file: EpisodeFile) -> bool:
        """Whether a file lies in the run's folder, not where a link leads out of it."""
        return file.path.resolve().is_relative_to(self._folder.directory.resolve())

    def page(self) -> str:
        """The page, without a row. Raises ToolrlError."""
        runs = read_runs(self._folder, self._compare)
        data = {**charts_data(runs), "columns": COLUMNS, "rows": [], "tokens": {}, "served": True}
        return render_page(runs, self._totals(), script_json(data), "loading …", connect="'self'")

    def live(self, after: int, stamp: str) -> str:
        """What has changed since an answer with this `after` and `stamp`, as JSON; both are in the answer."""
        with self._lock:
            changed = sorted((at, name, index.rows) for name, (at, index) in self._files.items() if at > after)
            known = sum(index.totals.episodes for _, index in self._files.values())
        size, sent = 0, []
        for at, name, rows in changed:
            after = at
            sent.append(f'{{"file":{json.dumps(name)},"rows":{rows}}}')
            size += len(rows)
            if size > ANSWER_CHARS:
                break
        now = self._stamp()
        facts: dict[str, Any] = {
            "after": after,
            "stamp": now,
            "more": len(sent) < len(changed),
            "wait": 0.3 if self._waiting else 2.0 if self._folder.is_live() else 10.0,
            "note": self._note(known),
        }
        if now != stamp:
            runs = read_runs(self._folder, self._compare)
            facts |= {"parts": live_parts(runs, self._totals()), "charts": charts_data(runs)}
        return f'{script_json(facts)[:-1]},"files":[{",".join(sent)}]}}'

    def _note(self, known: int) -> str:
        if self._waiting:
            return f"{known:,} episodes so far; files of episodes still to be read: {self._waiting}."
        return f"All {known:,} episodes. {KEYS}" if known else no_episodes(self._folder.config)

    def _stamp(self) -> str:
        paths = [
            run.directory / name
            for run in (self._folder, *self._compare)
            for name in ("metrics.jsonl", "summary.json", NAME)
        ]
        return " ".join(str(stamp_of(path)) for path in paths if path.exists()) + f" {bool(self._waiting)}"

    def _totals(self) -> Totals:
        whole = Totals()
        with self._lock:
            for _, index in self._files.values():
                whole.merge(index.totals)
        return whole

    def search(self, query: str) -> str:
        """The lines of each file whose episodes say `query`, in any case, as JSON."""
        wanted = " ".join(query.lower().split()).encode("utf-8", "replace")
        with self._lock:
            files = [(name, index) for name, (_, index) in self._files.items()]
        found: dict[str, list[int]] = {}
        with self._searching:  # One after the other: a page asks again with each letter that is typed.
            for name, index in files:
                try:
                    lines = index.lines_with(wanted)
                except (OSError, EOFError, zlib.error):  # deleted or torn meanwhile
                    continue
                except DataError as error:
                    _log.warning("not searched: %s", error)
                    continue
                if lines:
                    found[name] = lines
        return script_json({"files": found})

    def episode(self, name: str, line: int, its_id: str) -> str:
        """An episode by its file and line, with the texts of its tokens, as JSON. Raises LookupError where the file
        holds it no more."""
        _, file, record = self._record(name, line, its_id)
        stored = StoredEpisode(file.step, file.kind, episode_from_json(record))
        ids = {token for trajectory in stored.episode.trajectories for token in trajectory.ids}
        with self._lock:
            if not ids <= self._tokens.keys():
                self._tokens = read_tokens(self._folder)
            texts = {str(token): self._tokens[token] for token in ids if token in self._tokens}
        return script_json({"episode": view(stored), "tokens": texts})

    def record(self, name: str, line: int, its_id: str) -> str:
        """An episode by its file and line as the run stored it. Raises LookupError where the file holds it no more."""
        return self._record(name, line, its_id)[0].decode("utf-8", "replace")

    def _record(self, name: str, line: int, its_id: str) -> tuple[bytes, EpisodeFile, dict[str, Any]]:
        """An episode's line, its file, and the line's value."""
        files = {name_of(file): file for file in self._folder.episode_store.files() if self._inside(file)}
        file = files[name]
        with self._lock:
            _, index = self._files.get(name, (0, None))
        members = index.members if index is not None and index.stamp == stamp_of(file.path) else []
        lines = read_member(file, line // MEMBER_EPISODES, members)
        text = lines[line % MEMBER_EPISODES].rstrip(b"\n")
        record = read_json(text)
        if not isinstance(record, dict) or record.get("id") != its_id:
            raise LookupError(its_id)
        return text, file, record


class ServedFolder:
    """A folder of runs: a list of them, and each run once its page was opened."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._opened: dict[str, ServedRun] = {}

    def find(self, path: str) -> tuple[ServedRun | ServedFolder, str] | None:
        """Find what answers a path, and the name that it asks for; None if nothing does."""
        if path == "/":
            return self, ""
        head, _, name = path.removeprefix("/runs/").rpartition("/")
        runs = find_runs(self._root)
        if not path.startswith("/runs/") or name not in _NAMES or head not in runs:
            return None
        with self._lock:
            if head not in self._opened:
                self._opened[head] = ServedRun(RunFolder.open(runs[head]))
            return self._opened[head], name

    def refresh(self) -> None:
        """Bring the opened runs up to date."""
        with self._lock:
            opened = list(self._opened.values())
        for run in opened:
            run.refresh()

    def page(self) -> str:
        """The list of runs."""
        return runs_page(self._root)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30.0
    """Seconds for a client to send its next request: one that doesn't would hold a thread for ever."""
    served: ClassVar[ServedRun | ServedFolder]
    own: ClassVar[bool]

    def do_GET(self) -> None:
        problem = refused(self.headers.get("Host"), self.headers.get("Origin"), own=self.own)
        if problem is not None:
            return self._answer(403, problem, "text/plain")
        url = urlsplit(self.path)
        asked = dict(parse_qsl(url.query))
        try:
            if url.path == "/favicon.ico":
                return self._answer(204, "", "image/x-icon")
            found = self.served.find(unquote(url.path))
            if found is None:
                return self._answer(404, "there is nothing here but the report: open /", "text/plain")
            served, name = found
            if isinstance(served, ServedFolder) or name == "":
                return self._answer(200, served.page(), "text/html")
            if name == "live":
                answer = served.live(int(asked.get("after", 0)), asked.get("stamp", ""))
            elif name == "search":
                answer = served.search(asked.get("words", ""))
            else:
                episode = served.episode if name == "episode" else served.record
                answer = episode(asked["file"], int(asked["line"]), asked["id"])
        except LookupError:
            return self._answer(404, "the run doesn't hold this episode any more: load the page again", "text/plain")
        except (ValueError, OSError, EOFError, zlib.error, ToolrlError) as error:
            return self._answer(500, f"this can't be read: {error}", "text/plain")
        return self._answer(200, answer, "application/json")

    def _answer(self, status: int, text: str, kind: str) -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the page was closed
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as http.server has it
        """Nothing: a page asks every few seconds."""


def serve(served: ServedRun | ServedFolder, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve a run's page, or those of a folder, until Ctrl-C. `announce` gets the address. Raises ConfigError if that
    can't be had."""
    handler = type("Handler", (_Handler,), {"served": served, "own": is_loopback(host)})
    try:
        server = ThreadingHTTPServer((host, port), handler)
    except OSError as error:
        raise ConfigError(
            f"the report can't be served on {host}:{port}: {error.strerror or error}",
            hint="Choose another --port, or --port 0 for any that is free.",
        ) from error
    server.daemon_threads = True
    stop = threading.Event()

    def follow() -> None:
        while not stop.is_set():
            began = time.monotonic()
            served.refresh()
            stop.wait(max(1.0, 3 * (time.monotonic() - began)))  # Long steps are read again and again while they run.

    threading.Thread(target=follow, daemon=True).start()
    announce(f"http://{host}:{server.server_address[1]}/")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        stop.set()
        server.server_close()
