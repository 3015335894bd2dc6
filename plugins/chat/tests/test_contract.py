"""The chat formats keep the contracts of a plugin."""

from __future__ import annotations

from pathlib import Path

from toolrl.plugins.registry import Registry
from toolrl.protocols import BuildContext
from toolrl_plugin_chat import plugin
from toolrl_testing import PluginContract
from toolrl_testing.fake_chat import TemplateTokenizer


class TestContract(PluginContract):
    plugin = "chat"

    def build_context(self, kind: str, name: str, tmp_path: Path) -> BuildContext | None:
        # `plain` shows earlier turns without the end mark that the model samples, so its laws are others.
        return None if name == "plain" else BuildContext(name, where=f"tests.{name}", tokenizer=TemplateTokenizer())


def test_older_configs_name_the_formats_as_parts_of_core() -> None:
    registry = Registry.from_modules({"chat": plugin})
    for name in ("plain", "template"):
        assert registry.get("chat_formats", f"builtin/{name}").qualified == f"chat/{name}"
