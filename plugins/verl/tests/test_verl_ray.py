"""With Ray installed, the actors of a user's tools run in Ray's workers, verl importable or not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import verl_guide_tools
from verl_clone import tool_yaml, write_clone
from verl_harness import YOUR_TOOL, Make, play

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20)
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("verl", "limited_tools")]:
        del sys.modules[name]


@pytest.mark.parametrize("state", ["whole", "package missing"])
def test_the_sandbox_tool_of_a_clone_runs_in_a_worker(
    make_toolset: Make, tmp_path: Path, sandbox: str, state: str
) -> None:
    write_clone(tmp_path, state)
    names = ("sandbox_fusion_tools", "SandboxFusionTool", "code_interpreter", "code")
    toolset = make_toolset(tool_yaml(*names, sandbox_fusion_url=sandbox), python_path=[str(tmp_path)])
    played = play(toolset, ("code_interpreter", {"code": "print(1)"}))
    assert [result.text for result in played.results] == ["of the clone: 8 characters, 30 s, 1024 MB\n"]
    assert ("tool:code_interpreter", 0.5) in played.rewards


def test_a_tool_of_the_guides_runs_in_a_worker_without_verl(make_toolset: Make, tmp_path: Path, retriever: str) -> None:
    text = Path(verl_guide_tools.__file__).read_text().replace("from toolrl_plugin_verl import ray", "import ray")
    (tmp_path / "limited_tools.py").write_text(text.replace("toolrl_plugin_verl.", "verl."))
    config = f"{{type: native, retrieval_service_url: '{retriever}', num_workers: 2, rate_limit: 2}}"
    yaml = YOUR_TOOL.replace("verl_guide_tools.YourTool", "limited_tools.SearchTool")
    yaml = yaml.replace("{type: native}", config).replace("answer: {type: string", "query_list: {type: array")
    played = play(
        make_toolset(yaml.replace("[answer]", "[query_list]"), python_path=[str(tmp_path)]),
        ("your_tool", {"query_list": ["toolrl"]}),
    )
    assert "About toolrl" in played.results[0].text


def test_a_file_that_is_run_by_its_path_reaches_a_worker(make_toolset: Make) -> None:
    functions = """
import ray
from verl.tools.function_tool import function_tool


class Doubler:
    def double(self, number):
        return 2 * number


@function_tool
def double(number: int) -> str:
    \"\"\"Doubles.

    Args:
        number: The number
    \"\"\"
    worker = ray.remote(Doubler).options(num_cpus=0).remote()
    return str(ray.get(worker.double.remote(number)))
"""
    assert [result.text for result in play(make_toolset(functions=functions), ("double", {"number": 4})).results] == [
        "8"
    ]


def test_what_a_worker_raises_is_one_line_for_the_model(
    make_toolset: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_clone(tmp_path, "whole")
    names = ("sandbox_fusion_tools", "SandboxFusionTool", "code_interpreter", "code")
    yaml = tool_yaml(*names, sandbox_fusion_url="http://127.0.0.1:1/run_code")
    (result,) = play(
        make_toolset(yaml, python_path=[str(tmp_path)]), ("code_interpreter", {"code": "print(1)"})
    ).results
    assert "ConnectionError" in result.text
    assert "\n" not in result.text
    assert "File " not in result.text
    assert "in execute_code" in caplog.text
