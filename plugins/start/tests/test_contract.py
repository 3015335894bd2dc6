"""Commands and the components `function` keep the contracts of a plugin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from toolrl_testing import PluginContract

OWN = '''
from toolrl.agent_protocols import Outcome
from toolrl.protocols import ToolParser
from toolrl.types import ParsedTurn, ToolCall

ROWS = [{"prompt": "2 + 2?", "answer": "4"}, {"prompt": "2 + 3?", "answer": "5"}]


def exact(episode):
    return episode.final_text.strip() == episode.task.answer


class Lines(ToolParser):
    """A turn that begins with CALL calls the tool that it names."""

    def parse(self, text, **more):
        called = text.startswith("CALL ")
        items = (ToolCall(text[5:30], {}, span=(0, len(text)), raw=text),) if called else ()
        return ParsedTurn(items, content="" if called else text, status="calls" if items else "final")


class Answers:
    """Asks the model once."""

    async def play(self, task, model, episode):
        await model.ask(task.messages)
        return Outcome()


def double(number: int) -> str:
    """Twice a number."""
    return str(2 * number)
'''


NAMES = {"tools": "double", "rewards": "exact", "datasets": "ROWS", "parsers": "Lines", "harnesses": "Answers"}


class TestContract(PluginContract):
    plugin = "start"
    parser_texts: ClassVar = {"function": ["CALL double"]}
    tool_calls: ClassVar = {"double": {"number": 4}}

    def component_options(self, kind: str, name: str, tmp_path: Path) -> Mapping[str, Any]:
        if kind not in NAMES:
            return {}
        file = tmp_path / "own.py"
        file.write_text(OWN, encoding="utf-8")
        return {"target": f"{file}:{NAMES[kind]}"}
