"""How tests read a text."""

from __future__ import annotations

from typing import Any

import pytest

from toolrl.types import ToolCall
from toolrl_plugin_tir.parser import TirParser
from toolrl_testing.fakes import CharTokenizer


def _parse(text, **given):
    return TirParser().parse(text, tools=(), **given)


def _read(text, **given):
    items = _parse(text, **given).items
    return [next(iter(i.arguments.values())) if isinstance(i, ToolCall) else f"!{i.kind}" for i in items]


@pytest.fixture
def parse():
    """A text as a parsed turn."""
    return _parse


@pytest.fixture
def read():
    """A text as the code or expression of each call, and `!` with the kind of each error."""
    return _read


class TemplateTokenizer(CharTokenizer):
    """One token a character, with a chat template written in Python, which shows tools in a way of its own."""

    chat_template = "written in Python"

    def apply_chat_template(self, messages: Any, *, tools: Any, add_generation_prompt: bool, **options: Any) -> str:
        turns = [f"<|{message['role']}|>{message['content']}<|end|>" for message in messages]
        told = f"<|system|>{tools}<|end|>" if tools else ""
        think = "<think>" if options.get("think") else ""
        return told + "".join(turns) + (f"<|assistant|>{think}" if add_generation_prompt else "")


@pytest.fixture
def tokenizer():
    """A tokenizer with a chat template."""
    return TemplateTokenizer()
