"""What the tests of the verl plugin share: the guides' tools, and toolsets made of YAML on the spot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

import verl_guide_tools
from verl_harness import Make

from toolrl_plugin_verl.options import VerlToolOptions
from toolrl_plugin_verl.toolset import VerlToolset
from toolrl_testing import make_build_context
from toolrl_testing.http_stub import HttpReply, http_stub


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


@pytest.fixture
def sandbox() -> Iterator[str]:
    """The address of a server with Sandbox Fusion's API: each program writes its own length."""

    def run(asked: Any) -> HttpReply:
        said = f"{len(asked['code'])} characters, {asked['run_timeout']:g} s, {asked['memory_limit_MB']} MB\n"
        ran = {"status": "Finished", "execution_time": 0.01, "return_code": 0, "stdout": said, "stderr": ""}
        return HttpReply({"status": "Success", "message": "", "compile_result": None, "run_result": ran, "files": {}})

    with http_stub(run) as stub:
        yield f"{stub.url}/run_code"


@pytest.fixture
def retriever() -> Iterator[str]:
    """The address of a server with Search-R1's API: each query finds passages about itself."""

    def find(asked: Any) -> HttpReply:
        passages = [
            [{"document": {"contents": f"About {query}\nText {n}"}, "score": 1.0} for n in range(asked["topk"])]
            for query in asked["queries"]
        ]
        return HttpReply({"result": passages})

    with http_stub(find) as stub:
        yield f"{stub.url}/retrieve"
