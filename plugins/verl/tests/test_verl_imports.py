"""Files written for verl load as they are, and the user's own files go before the stand-ins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
import verl_guide_tools
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
