"""How tests read a text."""

from __future__ import annotations

import pytest

from toolrl.types import ToolCall
from toolrl_plugin_tir.parser import TirParser
from toolrl_testing.fake_chat import TemplateTokenizer


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


@pytest.fixture
def tokenizer():
    """A tokenizer with a chat template."""
    return TemplateTokenizer()
