"""What a chat template can do, found by rendering probes with it.

Templates say nowhere whether they show tools, take calls as a mapping or as JSON, accept role `tool`, keep several
calls of one turn, or know a system message. Each ability is tried with texts that can be found again in what comes
out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolrl.chat.rendering import Dict, Renderer, Shape, tool_message
from toolrl.types import Message, ToolCall, ToolSpec

PROBE = "zqPROBEqz"
"""Stands for a content or for an argument; found again in the rendered text."""
RESULT = "zqRESULTqz"
ANSWER = "zqANSWERqz"
TOOL = ToolSpec(
    "probe_tool",
    "Looks a probe up.",
    {
        "type": "object",
        "properties": {"argument": {"type": "string", "description": "What to look up."}},
        "required": ["argument"],
    },
)
USER: Dict = {"role": "user", "content": "zqUSERqz"}
_SYSTEM: Dict = {"role": "system", "content": "zqSYSTEMqz"}


@dataclass(frozen=True, slots=True)
class Abilities:
    """What was found."""

    shape: Shape
    system: bool
    """A system message is shown."""
    tools: bool
    """`tools=` is shown."""
    calls: bool
    """An assistant's `tool_calls` are shown."""
    parallel: bool
    """Several calls in one turn are shown."""
    tool_role: bool
    """A message of role `tool` is shown after a call."""
    plain_tool_role: bool
    """A message of role `tool` is shown after an assistant's text."""


def study(renderer: Renderer) -> Abilities:
    """Try everything. Raises ChatFormatError where the template can't render a user's message at all."""
    renderer([USER], generation_prompt=True)
    system = renderer.attempt([_SYSTEM, USER], generation_prompt=True)
    tools = renderer.attempt([USER], [TOOL.as_function()], generation_prompt=True)
    shape, calls, tool_role = _study_calls(renderer)
    spoken = renderer.attempt([USER, shape.assistant(PROBE), _result(0)])
    return Abilities(
        shape=replace(shape, reasoning_key=_reasoning_key(renderer)),
        system=system is not None and _SYSTEM["content"] in system,
        tools=tools is not None and TOOL.name in tools,
        calls=calls,
        parallel=calls and _parallel(renderer, shape, tool_role),
        tool_role=tool_role,
        plain_tool_role=_in_order(spoken, PROBE, RESULT),
    )


def probe_call(index: int = 0, value: str = PROBE, call_id: str = "", name: str = TOOL.name) -> ToolCall:
    """A call whose last argument is a probe."""
    return ToolCall(name, {"argument": value}, id=call_id or f"call{index:05d}")


def _result(index: int, text: str = RESULT) -> Dict:
    return tool_message(Message("tool", text, tool_call_id=f"call{index:05d}", name=TOOL.name), index)


def _study_calls(renderer: Renderer) -> tuple[Shape, bool, bool]:
    """The first shape in which a call is shown: preferably with a result of role tool behind it."""
    tools = [TOOL.as_function()]
    shapes = [Shape(as_json, content) for as_json in (False, True) for content in ("", None)]
    for tool_role in (True, False):
        answer: Dict = _result(0) if tool_role else {"role": "user", "content": RESULT}
        for shape in shapes:
            text = renderer.attempt([USER, shape.assistant("", [probe_call()]), answer], tools)
            # A mapping that a template prints without `tojson` comes out in Python's notation.
            if text is not None and _in_order(text, TOOL.name, PROBE, RESULT) and "{'argument" not in text:
                return shape, True, tool_role
    return Shape(), False, False


def _parallel(renderer: Renderer, shape: Shape, tool_role: bool) -> bool:
    calls = [probe_call(0, f"{PROBE}0"), probe_call(1, f"{PROBE}1")]
    answers: list[Dict] = [_result(0, f"{RESULT}0"), _result(1, f"{RESULT}1")]
    if not tool_role:
        answers = [{"role": "user", "content": f"{RESULT}0 {RESULT}1"}]
    text = renderer.attempt([USER, shape.assistant("", calls), *answers], [TOOL.as_function()])
    return _in_order(text, f"{PROBE}0", f"{PROBE}1", f"{RESULT}0", f"{RESULT}1")


def _reasoning_key(renderer: Renderer) -> str | None:
    for key in ("reasoning_content", "reasoning", "thinking"):
        text = renderer.attempt([USER, {"role": "assistant", "content": ANSWER, key: PROBE}])
        if _in_order(text, PROBE, ANSWER):
            return key
    return None


def _in_order(text: str | None, *parts: str) -> bool:
    position = 0
    for part in parts:
        position = text.find(part, position) if text is not None else -1
        if position < 0:
            return False
    return True
