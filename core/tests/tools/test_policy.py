"""The policy: what the model is told when a call goes wrong, time limits, truncation, layers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from toolrl.config.tool_policy import PolicyOptions
from toolrl.errors import ToolError
from toolrl.tools.toolbox import ToolBox, ToolBoxSession, ToolEntry
from toolrl.tools.traits import ToolTraits
from toolrl.tools.truncate import token_cut
from toolrl.tools.validation import arguments_form
from toolrl.types import CallError, ToolCall, ToolResult, ToolSpec
from toolrl_testing.fakes import FakeChatFormat, RecordingToolset, make_episode_context, make_task

SPEC = ToolSpec(
    "search",
    "Searches.",
    {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "topk": {"type": "integer", "minimum": 1},
            "mode": {"enum": ["exact", "fuzzy"]},
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
            "where": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
        "required": ["query"],
    },
)


def answer(
    respond: Callable[[ToolCall], Any],
    *calls: ToolCall | CallError,
    policy: dict[str, Any] | None = None,
    spec: ToolSpec = SPEC,
) -> tuple[list[ToolResult], ToolBoxSession]:
    toolset = RecordingToolset(respond, [spec])
    options = PolicyOptions.model_validate(policy or {})
    box = ToolBox([ToolEntry("search", toolset, policy=options)], cut=token_cut(FakeChatFormat()))

    async def main() -> tuple[list[ToolResult], ToolBoxSession]:
        async with box.open(make_task(), make_episode_context()) as session:
            return [record.result for record in await session.answer(calls)], session

    return asyncio.run(main())


def raising(error: BaseException) -> Callable[[ToolCall], str]:
    def respond(call: ToolCall) -> str:
        raise error

    return respond


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "'query' is a required property."),
        ({"query": 3}, "'query': 3 is not of type 'string'."),
        ({"query": "a", "topk": True}, "'topk': True is not of type 'integer'."),
        ({"query": "a", "topk": 0}, "'topk': 0 is less than the minimum of 1."),
        ({"query": "a", "tags": 1}, "'tags': 1 is not valid under any of the given schemas."),
        ({"query": "a", "where": {"city": 1}}, "'where.city': 1 is not of type 'string'."),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_bad_arguments_are_answered_with_what_is_wrong_and_the_right_form(
    arguments: dict[str, Any], message: str
) -> None:
    (result,), _ = answer(lambda call: pytest.fail("must not be called"), ToolCall("search", arguments))
    assert result.error == "bad_arguments"
    assert result.text.startswith("Bad arguments for the tool 'search': ")
    assert message in result.text
    assert result.text.endswith(f"Right form: {arguments_form(SPEC)}")
    assert '{"query": string, "topk": integer (optional), "mode": "exact" | "fuzzy" (optional)' in result.text


def test_unknown_arguments_pass_unless_the_schema_forbids_them() -> None:
    (result,), _ = answer(lambda call: str(call.arguments["x"]), ToolCall("search", {"query": "a", "x": 1}))
    assert (result.text, result.error) == ("1", None)
    closed = ToolSpec("search", "", {**SPEC.parameters, "additionalProperties": False})
    (result,), _ = answer(lambda call: "", ToolCall("search", {"query": "a", "x": 1}), spec=closed)
    assert "Additional properties are not allowed ('x' was unexpected)" in result.text


def test_a_tools_own_error_is_the_models_text() -> None:
    (result,), session = answer(raising(ToolError("Nothing found.")), ToolCall("search", {"query": "a"}))
    assert (result.text, result.error) == ("Nothing found.", "tool_error")
    assert session.failures == []


@pytest.mark.parametrize(
    "error", [ValueError("bad page"), SystemExit(2), asyncio.CancelledError("inner"), RecursionError("deep")]
)
def test_a_crash_is_answered_and_remembered(error: BaseException) -> None:
    (result,), session = answer(raising(error), ToolCall("search", {"query": "a"}))
    assert result.error == "crash"
    assert result.text == f"The tool 'search' crashed: {type(error).__name__}: {error}"
    (failure,) = session.failures
    assert failure.tool == "search"
    assert f'  File "{__file__}"' in failure.traceback


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "returned NoneType None, expected a ToolResult"),
        (ToolResult(None), "whose text is NoneType"),  # type: ignore[arg-type]
        (ToolResult("t", reward=float("nan")), "nan as reward"),
        (ToolResult("t", metrics={"a": "b"}), "as metric 'a'"),  # type: ignore[dict-item]
    ],
)
def test_a_toolset_that_gives_something_else_has_crashed(value: Any, message: str) -> None:
    (result,), session = answer(lambda call: value, ToolCall("search", {"query": "a"}))
    assert result.error == "crash"
    assert message in result.text
    assert len(session.failures) == 1


def test_a_call_that_takes_too_long_is_cancelled_and_answered(scene: Any, virtual: Any) -> None:
    ends: list[str] = []

    async def work(call: ToolCall) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise
        return "late"

    result = virtual(scene(work, {"timeout": 0.5}).ask()).result
    assert (result.error, ends) == ("timeout", ["cancelled"])
    assert result.text == "The tool 'search' gave no answer within 0.5 s and was stopped."


def test_the_tools_own_limit_holds_unless_the_config_sets_one(scene: Any, virtual: Any) -> None:
    async def work(call: ToolCall) -> str:
        await asyncio.sleep(5)
        return "done"

    assert virtual(scene(work, {}, traits=ToolTraits(timeout=1)).ask()).result.error == "timeout"
    assert virtual(scene(work, {"timeout": 30}, traits=ToolTraits(timeout=1)).ask()).result.text == "done"


def test_a_timeout_inside_the_tool_is_a_crash_not_the_limit(scene: Any, virtual: Any) -> None:
    async def work(call: ToolCall) -> str:
        raise TimeoutError("socket")

    result = virtual(scene(work, {}).ask()).result
    assert (result.error, result.text) == ("crash", "The tool 'search' crashed: TimeoutError: socket")


@pytest.mark.virtual_time
async def test_a_tool_that_swallows_its_cancellation_cannot_keep_the_episode(scene: Any) -> None:
    async def work(call: ToolCall) -> str:
        with suppress(BaseException):  # The mistake under test.
            await asyncio.sleep(60)
        return "still here"

    task = asyncio.create_task(scene(work, {}).ask())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("side", "expected"),
    [
        ("head", "0123456789\n[90 characters left out]"),
        ("tail", "[90 characters left out]\n0123456789"),
        ("middle", "01234\n[90 characters left out]\n56789"),
    ],
)
def test_truncate_says_which_part_is_kept(side: str, expected: str) -> None:
    text = "0123456789" * 10
    policy = {"max_output_tokens": len(expected) + 1, "truncate": side}
    (result,), _ = answer(lambda call: text, ToolCall("search", {"query": "a"}), policy=policy)
    # The mark is budgeted for the length of the whole text (three digits), so one character less is kept at most.
    assert result.truncated
    assert result.text == expected


@pytest.mark.parametrize("parameters", [{"properties": ["a"]}, {"properties": {"a": {"anyOf": 3}}}, {"required": 3}])
def test_a_schema_that_is_none_loses_no_call(parameters: dict[str, Any]) -> None:
    spec = ToolSpec("search", "", parameters)
    unread = CallError("invalid_json", "This is no JSON.", name="search")
    results, _ = answer(lambda call: "found", unread, ToolCall("search", {}), spec=spec)
    assert [result.error for result in results] == ["malformed", "crash"]
    assert results[1].text.startswith("The tool 'search' crashed: TypeError: its parameters are no JSON Schema: ")
    assert "\n" not in results[1].text
    assert results[0].text.startswith("This is no JSON. Arguments of 'search': {")
    results, _ = answer(lambda call: "found", unread, ToolCall("search", {}), spec=spec, policy={"validate": False})
    assert [result.error for result in results] == ["malformed", None]


async def test_arguments_of_any_depth_lose_no_call(scene: Any) -> None:
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"a": deep}
    calls = [ToolCall("search", {"query": "x", "where": where}) for where in (deep, {"city": "y"})]

    async def found(call: ToolCall) -> str:
        return "found"

    async with scene(found, {}, traits=ToolTraits(pure=True)).session() as session:
        assert [record.result.error for record in await session.answer(calls)] == ["crash", None]


def test_errors_are_cut_too_and_short_texts_are_left_alone() -> None:
    policy = {"max_output_tokens": 60, "truncate": "head"}
    (result,), _ = answer(raising(ValueError("x" * 1000)), ToolCall("search", {"query": "a"}), policy=policy)
    assert result.truncated
    assert len(result.text) <= 60
    (result,), _ = answer(lambda call: "y" * 60, ToolCall("search", {"query": "a"}), policy=policy)
    assert (result.text, result.truncated) == ("y" * 60, False)
    (result,), _ = answer(
        lambda call: "z" * 5000, ToolCall("search", {"query": "a"}), policy={"max_output_tokens": None}
    )
    assert (len(result.text), result.truncated) == (5000, False)


def test_a_huge_text_is_not_tokenised_as_a_whole() -> None:
    class Counting(FakeChatFormat):
        longest = 0

        def inline(self, text: str) -> tuple[int, ...]:
            self.longest = max(self.longest, len(text))
            return super().inline(text)

    chat = Counting()
    cut, was_cut = token_cut(chat)("a" * 10_000_000, 1000, "middle")
    assert was_cut
    assert len(cut) <= 1000
    assert chat.longest < 20_000


def test_a_schema_reference_is_never_fetched() -> None:
    spec = ToolSpec("search", "", {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}})
    (result,), session = answer(lambda call: "ok", ToolCall("search", {"a": 1}), spec=spec)
    assert result.error == "crash"
    assert "Unresolvable" in session.failures[0].message
    assert "urllib.request" not in sys.modules or "urlopen" not in session.failures[0].traceback


def test_what_a_tool_does_to_its_arguments_stays_with_it() -> None:
    given = {"query": "a", "where": {"city": "Oslo"}}

    def respond(call: ToolCall) -> str:
        call.arguments["where"]["city"] = object()
        return "ok"

    results, _ = answer(respond, ToolCall("search", given), ToolCall("search", given))
    assert [result.text for result in results] == ["ok", "ok"]
    assert given == {"query": "a", "where": {"city": "Oslo"}}
