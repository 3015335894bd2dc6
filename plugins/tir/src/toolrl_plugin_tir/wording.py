"""What a model is told of its tools, and how calls and results are written into texts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from toolrl.errors import ChatFormatError
from toolrl.types import CallRecord, Message, ToolCall, ToolSpec
from toolrl_plugin_tir.markers import MarkedTool, marked_tools
from toolrl_plugin_tir.syntax import ARGUMENTS

_RUN = re.compile(r"^[ \t]*+(`{3,}+)", re.MULTILINE)
_PREAMBLE = """# Tools

You can use tools while you answer. The result follows at once in an ```output block, and then you go on. Do not write \
output blocks yourself.

{tools}"""

_HOW = {
    "python": """Write code in a block, and print what you want to see:
```python
print(2**10)
```""",
    "calculator": "Write an expression in tags: <calculator>3 * (4 - 1)</calculator>",
}


def preamble(specs: Sequence[ToolSpec], own_text: str | None = None) -> str:
    """The description of the tools; empty where there are none."""
    how = {**_HOW, **{tool.name: f"Write {tool.form}" for tool in marked_tools(specs)}}
    told = [" ".join((f"{spec.name}:", *spec.description.split(), how[spec.name])) for spec in specs]
    text = _PREAMBLE if own_text is None else own_text
    return text.replace("{tools}", "\n\n".join(told)) if told else ""


def as_text(content: str, calls: Sequence[ToolCall], tools: Mapping[str, MarkedTool]) -> str:
    """An assistant's content with its calls in this syntax; `tools` are those called by markers. Raises
    ChatFormatError for a call of `python` or `calculator` that has no form."""
    return "\n".join(part for part in (content, *(_call(call, tools) for call in calls)) if part)


def results_text(results: Sequence[Message]) -> str:
    """Results that follow a turn, as text of one message."""
    return "\n".join(fenced(message.content).rstrip("\n") for message in results)


def plain(message: Message, tools: Mapping[str, MarkedTool]) -> Message:
    """A message whose calls or result stand in its text."""
    if message.role == "tool":
        return replace(message, content=results_text([message]))
    if message.tool_calls:
        return replace(message, content=as_text(message.content, message.tool_calls, tools), tool_calls=())
    return message


def _call(call: ToolCall, tools: Mapping[str, MarkedTool]) -> str:
    if call.name in tools:
        return tools[call.name].write(call.arguments)
    if call.name not in ARGUMENTS:  # A demonstration's, of a tool that no prompt described yet.
        (tool,) = marked_tools([ToolSpec(call.name, "", {"properties": {key: {} for key in call.arguments}})])
        return tool.write(call.arguments)
    key = ARGUMENTS.get(call.name)
    value = call.arguments.get(key) if key is not None and len(call.arguments) == 1 else None
    if not isinstance(value, str):
        raise ChatFormatError(
            f"a call of the tool {call.name!r} with the arguments {', '.join(call.arguments) or '(none)'} has no form "
            "in this syntax",
            hint="It has `python` with a text `code`, and `calculator` with a text `expression`.",
        )
    if call.name == "calculator":
        return f"<calculator>{value}</calculator>"
    fence = fence_for(value)
    return f"{fence}python\n{value}\n{fence}"


def fenced(text: str) -> str:
    """An output fence around a text."""
    fence = fence_for(text)
    return f"{fence}output\n{text}\n{fence}\n"


def fence_for(text: str) -> str:
    """Backticks that no line of the text begins with as many of; three where that is enough."""
    return "`" * (max((len(run) for run in _RUN.findall(text)), default=2) + 1)


def inline_results(records: Sequence[CallRecord]) -> str:
    """A fence for each record, in order."""
    return "".join(f"\n{fenced(_text(record))}" for record in records)


def _text(record: CallRecord) -> str:
    """What the model reads. Images and videos can't stand in a text, so a line names them."""
    media = record.result.media
    if not media:
        return record.result.text
    kinds = ", ".join(item.kind for item in media)
    return f"{record.result.text}\n(left out, since only text can be shown here: {kinds})"
