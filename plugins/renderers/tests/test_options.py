"""Settings, `auto`, and what is said where the library or its fit is missing."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from toolrl.errors import ChatFormatError, ComponentLoadError, ConfigError
from toolrl.protocols import BuildContext
from toolrl.types import Message, ToolCall, ToolSpec
from toolrl_plugin_renderers import library
from toolrl_plugin_renderers.chat import RenderersFormat
from toolrl_plugin_renderers.families import FAMILIES
from toolrl_plugin_renderers.options import RenderersFormatOptions, RenderersParserOptions
from toolrl_plugin_renderers.parser import RenderersParser


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
    assert "there is no renderer 'qwen'" in problem("qwen")
    assert "glm-5" in problem("qwen")
    assert "known are auto" in problem("default")
    assert "has no setting 'thinking'; it takes enable_thinking" in problem("qwen3", thinking=True)
    assert "reasoning_effort: Input should be 'low', 'high' or 'max'" in problem("glm-5.3", reasoning_effort="most")
    assert "options (enable_thinking) belong to a renderer" in problem("auto", enable_thinking=False)
    # What has no meaning here, because nothing is rendered again and media are refused.
    assert "no setting 'thinking_retention'; it takes none" in problem("kimi-k2", thinking_retention="all")
    assert "no setting 'image_cache_max'" in problem("qwen3-vl", image_cache_max=1)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_setting_is_taken(name: str) -> None:
    config = type(library.load("renderers.configs").config_from_name(name))
    settings = {key: config.model_fields[key].get_default() for key in library.accepted(config)}
    assert RenderersFormatOptions(renderer=name, options=settings).options == settings
    assert re.findall(r"`([^`]+)`", rows()[name][-1]) == list(settings), "the README lists them"


def test_auto_goes_by_the_name_of_the_model(tokenizer_of: Any) -> None:
    class Named:
        """A tokenizer with another name."""

        def __init__(self, name: str) -> None:
            self.name_or_path = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(tokenizer_of("qwen3"), attribute)

        def __call__(self, *args: Any, **more: Any) -> Any:
            return tokenizer_of("qwen3")(*args, **more)

    assert RenderersFormat(None, BuildContext("renderers", tokenizer=Named("Qwen/Qwen3-8B"))).renderer == "qwen3"
    for name in ("./models/qwen3-0.6b", ""):
        with pytest.raises(ChatFormatError) as caught:
            RenderersFormat(None, BuildContext("renderers", where="here", tokenizer=Named(name)))
        assert repr(name or "without a name") in caught.value.message
        assert "options: {renderer: NAME}" in str(caught.value.hint)
        assert "glm-5" in str(caught.value.hint)
        assert "chat_format: template" in str(caught.value.hint)
        assert caught.value.where == "here"


def test_a_renderer_that_does_not_fit_the_tokenizer(tokenizer_of: Any) -> None:
    with pytest.raises(ChatFormatError, match="renderer 'glm-5' can't work with this tokenizer") as caught:
        RenderersFormat(RenderersFormatOptions(renderer="glm-5"), BuildContext("x", tokenizer=tokenizer_of("qwen3")))
    assert "[gMASK]" in caught.value.message


def test_without_a_tokenizer(tmp_path: Path, tokenizer_of: Any) -> None:
    context = BuildContext("renderers", where="--parser")
    with pytest.raises(ConfigError, match="needs the model's tokenizer") as caught:
        RenderersParser(RenderersParserOptions(renderer="qwen3"), context)
    assert "--option tokenizer=" in str(caught.value.hint)
    with pytest.raises(ConfigError, match="no tokenizer can be loaded from"):
        RenderersParser(RenderersParserOptions(renderer="qwen3", tokenizer=str(tmp_path / "none")), context)
    tokenizer_of("qwen3").save_pretrained(tmp_path)
    parser = RenderersParser(RenderersParserOptions(renderer="qwen3", tokenizer=str(tmp_path)), context)
    assert parser.renderer == "qwen3"


def test_the_command_parse(tmp_path: Path, tokenizer_of: Any) -> None:
    tokenizer_of("qwen3").save_pretrained(tmp_path / "model")
    text = '<tool_call>\n{"name": "look", "arguments": {"query": "x"}}\n</tool_call>'
    command = [sys.executable, "-m", "toolrl", "parse", "--parser", "renderers", "--json", text]
    command += ["--option", "renderer=qwen3", "--option", f"tokenizer={tmp_path / 'model'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["items"] == [{"name": "look", "arguments": {"query": "x"}}]


def test_the_self_check() -> None:
    assert library.check() == f"renderers {importlib.metadata.version('renderers')}, {len(FAMILIES)} families"


@pytest.mark.parametrize(("version", "age"), [("0.1.11", "old"), ("0.2.0", "new"), ("1.0", "new"), ("0.0.9rc1", "old")])
def test_another_version(version: str, age: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(ComponentLoadError, match=f"renderers {version} is too {age}") as caught:
        library.check()
    assert "pip install" in str(caught.value.hint)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, tokenizer_of: Any) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ComponentLoadError, match="isn't installed") as caught:
        library.check()
    assert "renderers>=0.1.12,<0.2" in str(caught.value.hint)
    # The options can't be looked at then; building says why.
    options = RenderersFormatOptions(renderer="qwen3", options={"anything": 1})
    with pytest.raises(ComponentLoadError, match="isn't installed"):
        RenderersFormat(options, BuildContext("renderers", tokenizer=tokenizer_of("qwen3")))


def test_a_library_that_lacks_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'httpx'", name="httpx")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ComponentLoadError, match="No module named 'httpx'"):
        library.check()


def test_gpt_oss_without_its_vocabulary(tokenizer_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class HarmonyError(Exception):
        pass

    def refuse(*_: Any) -> Any:
        raise HarmonyError("error downloading or loading vocab file")

    monkeypatch.setattr(library.load(), "create_renderer", refuse)
    with pytest.raises(ChatFormatError, match="vocab file") as caught:
        RenderersFormat(RenderersFormatOptions(renderer="gpt-oss"), BuildContext("x", tokenizer=tokenizer_of("qwen3")))
    assert "TIKTOKEN_ENCODINGS_BASE" in str(caught.value.hint)


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
