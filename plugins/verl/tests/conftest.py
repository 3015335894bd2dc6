"""What the tests of the verl plugin share: the guides' tools, and toolsets made of YAML on the spot."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

import verl_guide_tools
from verl_harness import Make

from toolrl_plugin_verl.options import VerlToolOptions
from toolrl_plugin_verl.toolset import VerlToolset
from toolrl_testing import make_build_context


@pytest.fixture
def make_toolset(tmp_path: Path) -> Make:
    """A toolset of a YAML's text, of a file of functions, or of both; further arguments are its options."""

    def make(yaml: str | None = None, functions: str | None = None, **options: Any) -> VerlToolset:
        if yaml is not None:
            (tmp_path / "tools.yaml").write_text(yaml, encoding="utf-8")
            options["tool_config_path"] = str(tmp_path / "tools.yaml")
        if functions is not None:
            (tmp_path / "functions.py").write_text(functions, encoding="utf-8")
            options["function_tool_path"] = str(tmp_path / "functions.py")
        return VerlToolset(VerlToolOptions(**options), make_build_context("verl", run_dir=tmp_path))

    return make


@pytest.fixture(autouse=True)
def _guide_log() -> Iterator[None]:
    """What the guides' tools noted is this test's alone."""
    verl_guide_tools.LOG.clear()
    yield
    verl_guide_tools.LOG.clear()


def serving(path: str, answer: Callable[[Any], Any]) -> Iterator[str]:
    """The address of a server that answers JSON by JSON."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(answer(asked)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/{path}"
        server.shutdown()
        thread.join()


@pytest.fixture
def sandbox() -> Iterator[str]:
    """The address of a server with Sandbox Fusion's API: each program writes its own length."""

    def run(asked: Any) -> Any:
        said = f"{len(asked['code'])} characters, {asked['run_timeout']:g} s, {asked['memory_limit_MB']} MB\n"
        ran = {"status": "Finished", "execution_time": 0.01, "return_code": 0, "stdout": said, "stderr": ""}
        return {"status": "Success", "message": "", "compile_result": None, "run_result": ran, "files": {}}

    yield from serving("run_code", run)


@pytest.fixture
def retriever() -> Iterator[str]:
    """The address of a server with Search-R1's API: each query finds passages about itself."""

    def find(asked: Any) -> Any:
        return {
            "result": [
                [{"document": {"contents": f"About {query}\nText {n}"}, "score": 1.0} for n in range(asked["topk"])]
                for query in asked["queries"]
            ]
        }

    yield from serving("retrieve", find)
