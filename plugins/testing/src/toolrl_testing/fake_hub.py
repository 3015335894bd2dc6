"""The Hugging Face Hub's HTTP API on loopback, for `huggingface_hub`, `transformers` and `datasets` as they are.

with fake_hub(tokens={"hf_write": {"ada"}}) as hub:       # token → namespaces that it may write to
    hub.add("ada/tiny", {"config.json": b"{}"}, private=True)
    ...                                                   # with HF_ENDPOINT=hub.url, HF_TOKEN, HF_HUB_DISABLE_XET=1
assert hub.files("ada/tiny")["README.md"].startswith(b"---")

It speaks whoami, create_repo, repo info, trees, downloads with ranges, validate-yaml, preupload, LFS and commit.
It has no Xet storage, branches or pull requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote, urlsplit

_API = re.compile(
    r"/api/(models|datasets)/([\w.-]+/[\w.-]+)(?:/(revision|tree|paths-info|preupload|commit|auth-check)(.*))?"
)
_RESOLVE = re.compile(r"/(datasets/)?([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)")
_BATCH = re.compile(r"/(datasets/)?([\w.-]+/[\w.-]+)\.git/info/lfs/objects/batch")
LARGE = (".safetensors", ".bin", ".parquet")
"""Endings of files that are uploaded by LFS."""


@dataclass
class Repo:
    """A repository: its files after each commit."""

    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def commit(self, files: Mapping[str, bytes]) -> str:
        """Add a commit with these files and return its id."""
        sha = hashlib.sha1(repr((len(self.commits), sorted(files))).encode()).hexdigest()
        self.commits[sha] = dict(files)
        return sha

    @property
    def sha(self) -> str:
        return next(reversed(self.commits))


class ReplyError(Exception):
    """An error status with the Hub's headers."""

    def __init__(self, status: int, code: str = "", message: str = "", **body: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": message, **body}
        self.headers = {"X-Error-Code": code, "X-Error-Message": message}


class FakeHub(ThreadingHTTPServer):
    """The server: repositories, tokens and what was asked."""

    daemon_threads = True

    def __init__(self, tokens: Mapping[str, set[str]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.tokens = dict(tokens)
        self.repos: dict[tuple[str, str], Repo] = {}
        self.blobs: dict[str, bytes] = {}
        """What was uploaded by LFS, by SHA-256."""
        self.requests: list[str] = []

    def add(self, name: str, files: Mapping[str, bytes], *, kind: str = "models", **settings: bool) -> Repo:
        """Add a repository of `models` or `datasets`."""
        repo = self.repos[kind, name] = Repo(**settings)
        repo.commit(files)
        return repo

    def files(self, name: str, kind: str = "models") -> dict[str, bytes]:
        """The files of a repository's last commit."""
        repo = self.repos[kind, name]
        return repo.commits[repo.sha]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def log_message(self, *args: Any) -> None:
        """Quiet."""

    def _serve(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        self.body, self.path_only = self.rfile.read(size), unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {self.path_only}")
        try:
            answer = self._answer()
        except ReplyError as error:
            self._reply(json.dumps(error.body).encode(), error.status, error.headers)
        else:
            if answer is not None:
                self._reply(json.dumps(answer).encode())

    do_GET = do_HEAD = do_POST = do_PUT = _serve

    def _reply(self, content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _answer(self) -> Any:
        """JSON, or None where the answer was sent."""
        hub = self.server
        if self.path_only == "/api/whoami-v2":
            spaces = sorted(self._spaces() or ())
            if not spaces:
                raise ReplyError(401, message="Invalid credentials in Authorization header")
            return {"type": "user", "name": spaces[0], "orgs": [{"name": name} for name in spaces[1:]]}
        if self.path_only == "/api/repos/create":
            return self._create(json.loads(self.body))
        if self.path_only == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if found := re.fullmatch(r"/lfs/(\w+)", self.path_only):
            if hashlib.sha256(self.body).hexdigest() != found[1]:
                raise ReplyError(400, message="wrong SHA-256")
            hub.blobs[found[1]] = self.body
            return {}
        if found := _BATCH.fullmatch(self.path_only):
            self._repo(f"{found[1] or 'models/'}"[:-1], found[2], write=True)
            return self._batch(json.loads(self.body)["objects"])
        if found := _RESOLVE.fullmatch(self.path_only):
            return self._send_file(self._repo(f"{found[1] or 'models/'}"[:-1], found[2], read=True), found[3], found[4])
        if found := _API.fullmatch(self.path_only):
            return self._of_repo(found[1], found[2], found[3] or "revision", found[4] or "/main")
        raise ReplyError(404, message=f"no route {self.path_only}")

    def _spaces(self) -> set[str] | None:
        """The namespaces that the request's token may write to; None without a token."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and token not in self.server.tokens:
            raise ReplyError(401, message="Invalid credentials in Authorization header")
        return self.server.tokens.get(token)

    def _repo(self, kind: str, name: str, *, read: bool = False, write: bool = False) -> Repo:
        spaces, repo = self._spaces(), self.server.repos.get((kind, name))
        own = name.partition("/")[0] in (spaces or ())
        if repo is None or (repo.private and not own):
            raise ReplyError(401 if spaces is None else 404, "RepoNotFound", "Repository not found")
        if write and not own:
            raise ReplyError(403, message=f"You don't have the rights to write to {name}")
        if read and repo.gated and not own:
            raise ReplyError(403, "GatedRepo", "Access to this repository is restricted")
        return repo

    def _create(self, asked: dict[str, Any]) -> Any:
        spaces, kind = self._spaces(), f"{asked.get('type', 'model')}s"
        name = f"{asked.get('organization') or sorted(spaces or {'nobody'})[0]}/{asked['name']}"
        if name.partition("/")[0] not in (spaces or ()):
            raise ReplyError(403, message="You don't have the rights to create a model under this namespace")
        if (kind, name) in self.server.repos:
            raise ReplyError(409, message="You already created this model repo", url=f"{self.server.url}/{name}")
        self.server.add(name, {".gitattributes": b""}, kind=kind, private=asked.get("visibility") == "private")
        return {"url": f"{self.server.url}/{name}", "name": name}

    def _batch(self, objects: list[dict[str, Any]]) -> Any:
        actions = [
            {**each, "actions": {"upload": {"href": f"{self.server.url}/lfs/{each['oid']}"}}} for each in objects
        ]
        return {"transfer": "basic", "objects": actions}

    def _of_repo(self, kind: str, name: str, verb: str, rest: str) -> Any:
        writes = verb in ("preupload", "commit")
        repo = self._repo(kind, name, read=verb in ("auth-check", "tree", "paths-info"), write=writes)
        revision, _, path = rest.strip("/").partition("/")
        sha = repo.sha if revision == "main" else revision
        if sha not in repo.commits:
            raise ReplyError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        files = repo.commits[sha]
        if verb == "auth-check":
            return {}
        if verb == "preupload":
            asked = json.loads(self.body)["files"]
            modes = ("lfs" if each["path"].endswith(LARGE) else "regular" for each in asked)
            return {"files": [{"path": each["path"], "uploadMode": mode, "shouldIgnore": False}
                              for each, mode in zip(asked, modes, strict=True)]}  # fmt: skip
        if verb == "commit":
            return {"commitUrl": f"{self.server.url}/{name}/commit/x", "commitOid": self._commit(repo)}
        if verb == "revision":
            siblings = [{"rfilename": each} for each in files]
            gated = "manual" if repo.gated else False
            return {"id": name, "sha": sha, "private": repo.private, "gated": gated, "siblings": siblings, "tags": []}
        wanted = json.loads(self.body)["paths"] if verb == "paths-info" else None
        listed = [each for each in files if (each in wanted if wanted is not None else each.startswith(path))]
        return [self._entry(each, files[each]) for each in listed]

    @staticmethod
    def _entry(path: str, content: bytes) -> dict[str, Any]:
        entry = {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
        if path.endswith(LARGE):
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        return entry

    def _commit(self, repo: Repo) -> str:
        files = dict(repo.commits[repo.sha])
        for line in self.body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                files[value["path"]] = self.server.blobs[value["oid"]]
            elif operation["key"] == "deletedFile":
                del files[value["path"]]
        return repo.commit(files)

    def _send_file(self, repo: Repo, revision: str, path: str) -> None:
        sha = repo.sha if revision == "main" else revision
        if sha not in repo.commits or path not in repo.commits[sha]:
            raise ReplyError(404, "EntryNotFound", f"{path} does not exist")
        content = repo.commits[sha][path]
        digest = (hashlib.sha256 if path.endswith(LARGE) else hashlib.sha1)(content).hexdigest()
        headers = {"ETag": f'"{digest}"', "X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            first, last = int(found[1]), min(int(found[2] or len(content) - 1), len(content) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            self._reply(content[first : last + 1], 206, headers)
        else:
            self._reply(content, 200, headers)


@contextmanager
def fake_hub(tokens: Mapping[str, set[str]]) -> Iterator[FakeHub]:
    """A Hub on a free port, for this process and those that it starts, also where HF_HUB_OFFLINE was set. `tokens`: the
    namespaces that each may write to, the user's own first by name."""
    from huggingface_hub import constants

    online = patch.dict(os.environ, HF_HUB_OFFLINE="0"), patch.object(constants, "HF_HUB_OFFLINE", False)
    with FakeHub(tokens) as hub, online[0], online[1]:
        thread = threading.Thread(target=hub.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
