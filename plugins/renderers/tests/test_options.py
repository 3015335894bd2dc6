"""Settings, `auto`, and what is said where the library or its fit is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from toolrl.errors import ChatFormatError
from toolrl.protocols import BuildContext
from toolrl.types import Message, ToolCall, ToolSpec
from toolrl_plugin_renderers import library
from toolrl_plugin_renderers.chat import RenderersFormat
from toolrl_plugin_renderers.families import FAMILIES
from toolrl_plugin_renderers.options import RenderersFormatOptions


def problem(renderer: str, **settings: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        RenderersFormatOptions(renderer=renderer, options=settings)
    return str(caught.value)


def test_every_family_of_the_library_is_known() -> None:
    base = library.load("renderers.base")
    base._populate_registry()
    assert set(FAMILIES) == set(base.RENDERER_REGISTRY) - {"default"}
    assert set(base.MODEL_RENDERER_MAP.values()) <= set(FAMILIES)


def test_unknown_names_and_settings() -> None:
    assert "there is no renderer 'qwen'; known are auto, qwen3" in problem("qwen")
    assert "thinking: Extra inputs are not permitted" in problem("qwen3", thinking=True)
    assert "reasoning_effort: Input should be 'low', 'high' or 'max'" in problem("glm-5.3", reasoning_effort="most")
    assert "options belong to a renderer" in problem("auto", enable_thinking=False)


def test_auto_goes_by_the_name_of_the_model(tokenizer_of: Any) -> None:
    class Named:
        """A tokenizer with another name."""

        def __init__(self, name: str) -> None:
            self.name_or_path = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(tokenizer_of("qwen3"), attribute)

        def __call__(self, *args: Any, **more: Any) -> Any:
            return tokenizer_of("qwen3")(*args, **more)

    assert RenderersFormat(None, BuildContext("renderers", tokenizer=Named("Qwen/Qwen3-8B")))._setup.name == "qwen3"
    with pytest.raises(ChatFormatError, match=r"no renderer is known for .*qwen3-0.6b") as caught:
        RenderersFormat(None, BuildContext("renderers", tokenizer=Named("./models/qwen3-0.6b")))
    assert "options: {renderer: NAME}" in str(caught.value.hint)


def test_a_renderer_that_does_not_fit_the_tokenizer(tokenizer_of: Any) -> None:
    with pytest.raises(ChatFormatError, match="renderer 'glm-5' can't work with this tokenizer") as caught:
        RenderersFormat(RenderersFormatOptions(renderer="glm-5"), BuildContext("x", tokenizer=tokenizer_of("qwen3")))
    assert "[gMASK]" in caught.value.message


def test_the_command_parse(tmp_path: Path, tokenizer_of: Any) -> None:
    tokenizer_of("qwen3").save_pretrained(tmp_path / "model")
    text = '<tool_call>\n{"name": "look", "arguments": {"query": "x"}}\n</tool_call>'
    command = [sys.executable, "-m", "toolrl", "parse", "--parser", "renderers", "--json", text]
    command += ["--option", "renderer=qwen3", "--option", f"tokenizer={tmp_path / 'model'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["items"] == [{"name": "look", "arguments": {"query": "x"}}]


# The table of families in the README.

README = Path(__file__).parents[1] / "README.md"


def rows() -> dict[str, list[str]]:
    """By renderer: the other cells."""
    table = README.read_text(encoding="utf-8").partition("| renderer |")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_every_family_has_a_row_in_the_readme() -> None:
    assert list(rows()) == list(FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
def test_facts_of_the_readme(name: str, format_of: Any, look: ToolSpec) -> None:
    _, several, opens, stays, _ = rows()[name]
    chat = format_of(name)
    thinking = chat.open([Message("user", "x")], (look,)).in_thinking
    assert opens == ("yes" if thinking else "no")
    calls = tuple(ToolCall("look", {"query": "x"}, id=f"functions.look:{n}") for n in (0, 1))
    try:
        chat.say(Message("assistant", "", tool_calls=calls, reasoning="So." if thinking else None))
        assert several == "several"
    except ChatFormatError:
        assert several == "one"
    rewritten = [remark for remark in chat.check((look,)) if "rewrites" in remark]
    within = any("tool, assistant" in remark for remark in rewritten)
    assert stays == ("no" if within else "until a question" if rewritten else "yes")
