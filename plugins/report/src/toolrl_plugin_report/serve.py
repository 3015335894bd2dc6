"""`toolrl report RUN --serve`: the page of a run over HTTP, with all of its episodes, while the run goes on.

The page is the one that `page.py` writes. Its rows come from the index of each file of episodes (index.py), newest
first, and an episode when it is opened. A request names a file of the run by its step and kind and an episode by its
line, never a path. Nothing can be changed over it.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

from toolrl.errors import ConfigError, ToolrlError
from toolrl.runs.episodes import MEMBER_EPISODES, EpisodeFile
from toolrl.runs.files import read_json
from toolrl.runs.folder import RunFolder
from toolrl.runs.records import StoredEpisode, episode_from_json
from toolrl_common.http_server import is_loopback, refused
from toolrl_plugin_report.index import FileIndex, keep_index, make_index, name_of, read_index, read_member, stamp_of
from toolrl_plugin_report.page import charts_data, live_parts, no_episodes, read_runs, read_tokens, render_page
from toolrl_plugin_report.sample import Totals, script_json
from toolrl_plugin_report.view import COLUMNS, view

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
        self._waiting = 0
        """Files that are still to be read."""
        self._tokens: dict[int, str] = {}

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
        """The page, without a row."""
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
            return f"{known:,} episodes so far; {self._waiting} files of episodes are still to be read."
        return f"All {known:,} episodes." if known else no_episodes(self._folder.config)

    def _stamp(self) -> str:
        paths = [
            run.directory / name for run in (self._folder, *self._compare) for name in ("metrics.jsonl", "summary.json")
        ]
        return " ".join(str(stamp_of(path)) for path in paths if path.exists()) + f" {bool(self._waiting)}"

    def _totals(self) -> Totals:
        whole = Totals()
        with self._lock:
            for _, index in self._files.values():
                whole.merge(index.totals)
        return whole

    def episode(self, name: str, line: int, its_id: str) -> str:
        """An episode by its file and line, with the texts of its tokens, as JSON. Raises LookupError where the file
        holds it no more."""
        files = {name_of(file): file for file in self._folder.episode_store.files() if self._inside(file)}
        file = files[name]
        with self._lock:
            _, index = self._files.get(name, (0, None))
        members = index.members if index is not None and index.stamp == stamp_of(file.path) else []
        lines = read_member(file, line // MEMBER_EPISODES, members)
        stored = StoredEpisode(file.step, file.kind, episode_from_json(read_json(lines[line % MEMBER_EPISODES])))
        if stored.episode.id != its_id:
            raise LookupError(its_id)
        ids = {token for trajectory in stored.episode.trajectories for token in trajectory.ids}
        with self._lock:
            if not ids <= self._tokens.keys():
                self._tokens = read_tokens(self._folder)
            texts = {str(token): self._tokens[token] for token in ids if token in self._tokens}
        return script_json({"episode": view(stored), "tokens": texts})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30.0
    """Seconds for a client to send its next request: one that doesn't would hold a thread for ever."""
    served: ClassVar[ServedRun]
    own: ClassVar[bool]

    def do_GET(self) -> None:
        problem = refused(self.headers.get("Host"), self.headers.get("Origin"), own=self.own)
        if problem is not None:
            return self._answer(403, problem, "text/plain")
        url = urlsplit(self.path)
        asked = dict(parse_qsl(url.query))
        try:
            if url.path == "/":
                return self._answer(200, self.served.page(), "text/html")
            if url.path == "/live":
                answer = self.served.live(int(asked.get("after", 0)), asked.get("stamp", ""))
            elif url.path == "/episode":
                answer = self.served.episode(asked["file"], int(asked["line"]), asked["id"])
            else:
                return self._answer(404, "there is nothing here but the report: open /", "text/plain")
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


def serve(
    folder: RunFolder, compare: Sequence[RunFolder], host: str, port: int, announce: Callable[[str], None]
) -> None:
    """Serve a run's page until Ctrl-C. `announce` gets its address. Raises ConfigError where that can't be had."""
    served = ServedRun(folder, compare)
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
