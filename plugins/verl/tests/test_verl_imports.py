"""Files written for verl load as they are, and the user's own files go before the stand-ins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
import verl_guide_tools
from verl_clone import STATES, tool_yaml, write_clone
from verl_harness import YOUR_TOOL, Make, play

from toolrl.errors import ConfigError

OWN = """
import logging
from uuid import uuid4

from verl.utils.reward_score import geo3k
from verl.utils.rollout_trace import rollout_trace_op

from .base_tool import BaseTool
from .schemas import OpenAIFunctionToolSchema, ToolResponse


class {cls}(BaseTool):
    def get_openai_tool_schema(self):
        function = {{"name": "own", "description": "Own.", "parameters": {{"type": "object"}}}}
        return OpenAIFunctionToolSchema.model_validate({{"type": "function", "function": function}})

    @rollout_trace_op
    async def execute(self, instance_id, parameters, **kwargs):
        return ToolResponse(text="{text}"), 0.0, {{}}
"""
NAMES = {
    "geo3k_tool": "Geo3kTool",
    "gsm8k_tool": "Gsm8kTool",
    "search_tool": "SearchTool",
    "sandbox_fusion_tools": "SandboxFusionTool",
}
RETOOL = """
import logging
import re
from typing import Any

import datasets

from verl.tools.base_tool import OpenAIFunctionToolSchema
from verl.tools.sandbox_fusion_tools import SandboxFusionTool
from verl.utils.dataset import RLHFDataset
from verl.utils.reward_score import math_dapo
from verl.utils.rollout_trace import rollout_trace_op

logger = logging.getLogger(__name__)


class CustomSandboxFusionTool(SandboxFusionTool):
    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self.code_pattern = re.compile(r"```python(.*?)```", re.DOTALL)

    @rollout_trace_op
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs) -> tuple[str, float, dict]:
        code = parameters["code"]
        matches = self.code_pattern.findall(code)
        if matches:
            code = matches[0].strip()
        timeout = parameters.get("timeout", self.default_timeout)
        language = parameters.get("language", self.default_language)
        result = await self.execution_pool.execute.remote(self.execute_code, instance_id, code, timeout, language)
        return result, None, None


class CustomRLHFDataset(RLHFDataset):
    def _read_files_and_tokenize(self):
        self.dataframe = datasets.load_dataset(self.data_files[0])["train"]
"""


@pytest.fixture(autouse=True)
def _paths(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test puts on the path stays with it, and Ray counts as not installed."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    found = PathFinder.find_spec

    def without_ray(name: str, *rest: Any) -> Any:
        return None if name == "ray" else found(name, *rest)

    monkeypatch.setattr(PathFinder, "find_spec", staticmethod(without_ray))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("verl", "recipe", "limited_tools")]:
        del sys.modules[name]


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def answer(toolset: Any, name: str, **arguments: Any) -> str:
    return play(toolset, (name, arguments)).results[0].text


@pytest.mark.parametrize("name", NAMES)
def test_the_users_own_file_wins(make_toolset: Make, tmp_path: Path, sandbox: str, name: str) -> None:
    yaml = f"tools:\n  - class_name: verl.tools.{name}.{NAMES[name]}\n"
    for place in ("one", "two"):
        write(tmp_path / place / "verl/tools" / f"{name}.py", OWN.format(cls=NAMES[name], text=f"from {place}"))
        if place == "two":  # A regular package, and one without.
            write(tmp_path / place / "verl/__init__.py", "")
            write(tmp_path / place / "verl/tools/__init__.py", "")
        assert answer(make_toolset(yaml, python_path=[str(tmp_path / place)]), "own") == f"from {place}"
    if name == "sandbox_fusion_tools":
        pytest.importorskip("toolrl_plugin_sandbox_fusion")
    if name not in ("geo3k_tool", "gsm8k_tool"):
        yaml += f"    config: {{retrieval_service_url: '{sandbox}', sandbox_fusion_url: '{sandbox}'}}\n"
    assert [spec.name for spec in play(make_toolset(yaml)).specs] != ["own"]


def test_the_guides_tools_load_with_the_imports_of_verl(make_toolset: Make, tmp_path: Path) -> None:
    text = Path(verl_guide_tools.__file__).read_text().replace("from toolrl_plugin_verl import ray", "import ray")
    write(tmp_path / "limited_tools.py", text.replace("toolrl_plugin_verl.", "verl."))
    yaml = YOUR_TOOL.replace("verl_guide_tools", "limited_tools")
    assert answer(make_toolset(yaml, python_path=[str(tmp_path)]), "your_tool", answer="4") == "call 1: 4"


def test_retools_tool_runs_unchanged(make_toolset: Make, tmp_path: Path, sandbox: str) -> None:
    pytest.importorskip("toolrl_plugin_sandbox_fusion")
    write(tmp_path / "recipe/retool/retool.py", RETOOL)
    write(tmp_path / "datasets.py", "")
    config = f"{{sandbox_fusion_url: '{sandbox}', num_workers: 2, rate_limit: 2, default_timeout: 30}}"
    yaml = f"tools:\n  - class_name: recipe.retool.retool.CustomSandboxFusionTool\n    config: {config}\n"
    for kind in ("native", "sandbox_fusion"):
        toolset = make_toolset(yaml.replace("}", f", type: {kind}}}"), python_path=[str(tmp_path)])
        said = answer(toolset, "code_interpreter", code="So:\n```python\nprint(1)\n```")
        assert said == "8 characters, 30 s, 1024 MB\n"


def test_what_has_no_stand_in_is_told(make_toolset: Make, tmp_path: Path) -> None:
    write(tmp_path / "lone_tools.py", "from verl.tools.base_tool import BaseTool\nfrom verl.workers import rollout\n")
    yaml = "tools:\n  - class_name: lone_tools.T\n"
    with pytest.raises(ConfigError, match=r"toolrl has no stand-in for verl.workers: install verl"):
        make_toolset(yaml, python_path=[str(tmp_path)])


@pytest.mark.parametrize("state", STATES)
def test_the_tools_of_a_clone_load_in_its_folder(
    make_toolset: Make, tmp_path: Path, sandbox: str, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    write_clone(tmp_path, state)
    monkeypatch.chdir(tmp_path)
    yaml = tool_yaml("gsm8k_tool", "Gsm8kTool", "calc_gsm8k_reward", "answer")
    create = {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "4"}}}
    played = play(make_toolset(yaml), ("calc_gsm8k_reward", {"answer": "4"}), kwargs=create)
    assert [result.text for result in played.results] == ["of the clone: 1.0"]
    assert played.rewards == [("tool:calc_gsm8k_reward", 1.0)]
    names = ("sandbox_fusion_tools", "SandboxFusionTool", "code_interpreter", "code")
    yaml = tool_yaml(*names, sandbox_fusion_url=sandbox)
    played = play(make_toolset(yaml), ("code_interpreter", {"code": "print(1)"}))
    assert [result.text for result in played.results] == ["of the clone: 8 characters, 30 s, 1024 MB\n"]
    assert ("tool:code_interpreter", 0.5) in played.rewards


@pytest.mark.parametrize("state", ["package missing", "package too new"])
def test_a_module_that_lacks_a_package_is_replaced_and_told(
    make_toolset: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    write_clone(tmp_path, "whole")
    file = tmp_path / "verl/tools/gsm8k_tool.py"
    file.write_text(STATES[state] + file.read_text())
    yaml = tool_yaml("gsm8k_tool", "Gsm8kTool", "calc_gsm8k_reward", "answer")
    said = answer(make_toolset(yaml, python_path=[str(tmp_path)]), "calc_gsm8k_reward", answer="4")
    assert said.startswith("Current parsed answer='4'")
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert str(file) in warning
    assert "stand-in" in warning


@pytest.mark.parametrize(
    ("mistake", "says", "hint"),
    [
        ("undefined_name", "NameError", "line 2: undefined_name"),
        ("from verl.tools.base_tool import BasTool", "BasTool", "line 2: from verl"),
        ("def f(:", "SyntaxError", None),
    ],
)
def test_a_mistake_in_the_users_own_file_is_told_with_its_line(
    make_toolset: Make, tmp_path: Path, mistake: str, says: str, hint: str | None
) -> None:
    write_clone(tmp_path, "package missing")
    (tmp_path / "verl/tools/gsm8k_tool.py").write_text(f"import json\n{mistake}\n")
    yaml = tool_yaml("gsm8k_tool", "Gsm8kTool", "calc_gsm8k_reward", "answer")
    with pytest.raises(ConfigError, match=says) as caught:
        make_toolset(yaml, python_path=[str(tmp_path)])
    assert (hint or "") in (caught.value.hint or "")
    assert "…" not in (caught.value.hint or "")
