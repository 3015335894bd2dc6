"""The chat formats keep the contracts of a plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolrl.protocols import BuildContext
from toolrl_testing import CharTokenizer, PluginContract


class TemplateTokenizer(CharTokenizer):
    """One token a character, with a chat template written in Python."""

    chat_template = "written in Python"

    def apply_chat_template(self, messages: Any, *, tools: Any, add_generation_prompt: bool, **options: Any) -> str:
        turns = [f"<|{message['role']}|>{message['content']}<|end|>" for message in messages]
        opened = "<|assistant|>" if add_generation_prompt else ""
        return (f"<|system|>{tools}<|end|>" if tools else "") + "".join(turns) + opened


class TestContract(PluginContract):
    plugin = "chat"

    def build_context(self, kind: str, name: str, tmp_path: Path) -> BuildContext | None:
        # `plain` shows earlier turns without the end mark that the model samples, so its laws are others.
        return None if name == "plain" else BuildContext(name, where=f"tests.{name}", tokenizer=TemplateTokenizer())
