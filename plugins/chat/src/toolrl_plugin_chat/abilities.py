"""What a chat template can do, found by rendering probes with it.

Templates say nowhere whether they show tools, take calls as a mapping or as JSON, accept role `tool`, keep several
calls of one turn, or know a system message. Each ability is tried with texts that can be found again in what comes
out.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from toolrl.types import Message, ToolCall, ToolSpec
from toolrl_plugin_chat.rendering import Dict, Renderer, Shape, call_id
from toolrl_plugin_chat.thinking import marks_in

PROBE = f"zq{secrets.token_hex(8)}qz"
"""Stands for a content or for an argument; found again in the rendered text. It is random, so that no tool's
description can pass for it."""
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
QUESTION = "zqUSERqz"
_SYSTEM = "zqSYSTEMqz"


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
    needs_tools: bool = False
    """Nothing is rendered without tools."""

    @property
    def ignored(self) -> str:
        """What of a conversation with tools the template doesn't show; empty where it shows all."""
        return "tools" if not self.tools else "calls" if not self.calls else ""


def study(renderer: Renderer) -> Abilities:
    """Try everything. Raises ChatFormatError if the template can't render a user's message, with tools or without."""
    needs_tools = _needs_tools(renderer)
    if needs_tools:
        renderer = probing(renderer)
    plain = _plain_shape(renderer)
    user = plain.text("user", QUESTION)
    system = renderer.attempt([plain.text("system", _SYSTEM), user], generation_prompt=True)
    tools = renderer.attempt([user], [TOOL.as_function()], generation_prompt=True)
    shape, calls, tool_role = _study_calls(renderer, plain)
    shape = _with_reasoning(renderer, shape, calls, tool_role)
    spoken = renderer.attempt([user, shape.assistant(PROBE), _result(shape, 0)])
    return Abilities(
        shape=shape,
        system=_in_order(system, _SYSTEM),
        tools=_in_order(tools, TOOL.name),
        calls=calls,
        parallel=calls and _parallel(renderer, shape, tool_role),
        tool_role=tool_role,
        plain_tool_role=_in_order(spoken, PROBE, RESULT),
        needs_tools=needs_tools,
    )


def probing(renderer: Renderer) -> Renderer:
    """The renderer for probes of a template that renders with tools only."""
    return renderer.with_tools([TOOL.as_function()])


def _needs_tools(renderer: Renderer) -> bool:
    questions = [[shape.text("user", QUESTION)] for shape in (Shape(), Shape(parts=True))]
    return not any(renderer.attempt(question, generation_prompt=True) for question in questions) and any(
        _in_order(probing(renderer).attempt(question, generation_prompt=True), QUESTION) for question in questions
    )


def probe_call(index: int = 0, value: str = PROBE, given_id: str = "", name: str = TOOL.name) -> ToolCall:
    """A call whose last argument is a probe."""
    return ToolCall(name, {"argument": value}, id=given_id or call_id(index))


def probe_results(calls: Sequence[ToolCall]) -> list[Message]:
    """Made-up answers to calls."""
    return [
        Message("tool", RESULT, tool_call_id=call.id or call_id(index), name=call.name)
        for index, call in enumerate(calls)
    ]


def _plain_shape(renderer: Renderer) -> Shape:
    """Whether contents are strings or lists of parts."""
    for shape in (Shape(), Shape(parts=True)):
        messages = [shape.text("user", QUESTION), shape.text("assistant", ANSWER), shape.text("user", PROBE)]
        if _in_order(renderer.attempt(messages), QUESTION, ANSWER, PROBE):
            return shape
    # Neither: rendering without a guard raises the template's own error.
    renderer([Shape().text("user", QUESTION)], generation_prompt=True)
    return Shape()


def _result(shape: Shape, index: int, text: str = RESULT) -> Dict:
    return shape.result(Message("tool", text, tool_call_id=call_id(index), name=TOOL.name), index)


def _study_calls(renderer: Renderer, plain: Shape) -> tuple[Shape, bool, bool]:
    """The first shape in which a call is shown: preferably with a result of role tool behind it."""
    tools, user = [TOOL.as_function()], plain.text("user", QUESTION)
    call, contents = probe_call(given_id="call_1"), ("", None)
    for tool_role, short, json, empty in itertools.product((True, False), (False, True), (False, True), contents):
        shape = replace(plain, json_arguments=json, empty_content=empty, short_ids=short)
        answer = shape.result(probe_results([call])[0], 0) if tool_role else shape.text("user", RESULT)
        text = renderer.attempt([user, shape.assistant("", [call]), answer], tools)
        # A mapping that a template prints without `tojson` comes out in Python's notation.
        if text is not None and _in_order(text, TOOL.name, PROBE, RESULT) and "{'argument" not in text:
            return shape, True, tool_role
    return plain, False, False


def _parallel(renderer: Renderer, shape: Shape, tool_role: bool) -> bool:
    calls = [probe_call(0, f"{PROBE}0"), probe_call(1, f"{PROBE}1")]
    answers = [_result(shape, 0, f"{RESULT}0"), _result(shape, 1, f"{RESULT}1")]
    if not tool_role:
        answers = [shape.text("user", f"{RESULT}0 {RESULT}1")]
    messages = [shape.text("user", QUESTION), shape.assistant("", calls), *answers]
    text = renderer.attempt(messages, [TOOL.as_function()])
    return _in_order(text, f"{PROBE}0", f"{PROBE}1", f"{RESULT}0", f"{RESULT}1")


def _with_reasoning(renderer: Renderer, shape: Shape, calls: bool, tool_role: bool) -> Shape:
    """The shape with the key under which reasoning is shown, in an answer or at least beside a call."""
    user, tools = shape.text("user", QUESTION), [TOOL.as_function()]
    for key in ("reasoning_content", "reasoning", "thinking"):
        keyed = replace(shape, reasoning_key=key)
        shown = _in_order(renderer.attempt([user, keyed.assistant(ANSWER, (), PROBE)]), PROBE, ANSWER)
        if not shown and calls:
            answer = _result(shape, 0) if tool_role else shape.text("user", RESULT)
            text = renderer.attempt([user, keyed.assistant("", [probe_call(value=ANSWER)], PROBE), answer], tools)
            shown = _in_order(text, PROBE, ANSWER, RESULT)
        if shown:
            return keyed
    return replace(shape, thinking=marks_in(renderer.source))


def _in_order(text: str | None, *parts: str) -> bool:
    position = 0
    for part in parts:
        position = text.find(part, position) if text is not None else -1
        if position < 0:
            return False
    return True
