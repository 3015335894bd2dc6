"""Whether a parser reads the calls of a chat format is found out before a run."""

from __future__ import annotations

from toolrl.chat.parser_roundtrip import calls_are_read
from toolrl.types import ToolSpec
from toolrl_plugin_qwen.hermes import HermesParser
from toolrl_plugin_qwen.qwen3_coder import Qwen3CoderParser
from toolrl_testing import FakeChatFormat

LOOK = ToolSpec("look", "", {"type": "object", "properties": {"key": {"type": "string"}}})


def test_a_parser_that_reads_them_is_fine() -> None:
    assert calls_are_read(FakeChatFormat(), HermesParser(), LOOK) is None


def test_a_parser_that_does_not_is_reported() -> None:
    remark = calls_are_read(FakeChatFormat(), Qwen3CoderParser(), LOOK)
    assert remark is not None
    assert "reads no call in the form that the chat format writes" in remark
    assert '"name": "look"' in remark
