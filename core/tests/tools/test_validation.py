"""Arguments and schemas that are costly to check: bounded, and never at the cost of other episodes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from toolrl.errors import ArgumentsError
from toolrl.tools.validation import check_arguments
from toolrl.types import ToolSpec


def spec(schema: dict[str, Any]) -> ToolSpec:
    return ToolSpec("tool", "A tool.", {"type": "object", "properties": {"x": schema}})


def references(levels: int) -> dict[str, Any]:
    """A schema of some kilobytes whose check takes 2^levels evaluations."""
    defs = {f"d{n}": {"oneOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(levels)}
    defs[f"d{levels}"] = {"type": "integer"}
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": defs}


HOSTILE: dict[str, tuple[dict[str, Any], Any]] = {
    "references": (references(30), "text"),
    "references behind another type": (
        {"type": "object", "properties": {"x": {"anyOf": [{"maxLength": 3}, {"$ref": "#/$defs/d0"}]}},
         "$defs": references(30)["$defs"]},
        "longer",
    ),
    "reference to itself": ({"type": "object", "properties": {"x": {"$ref": "#/properties/x"}}}, 1),
    "many values in an enum": (
        {"type": "object", "properties": {"x": {"items": {"enum": list(range(20_000))}}}}, [-1] * 20_000,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_check_without_end_is_an_error_for_the_model(name: str) -> None:
    schema, value = HOSTILE[name]
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    other = asyncio.create_task(tick())
    with pytest.raises(ArgumentsError, match="could not be checked"):
        await check_arguments(ToolSpec("tool", "A tool.", schema), {"x": value}, "tool")
    other.cancel()
    assert ticks > 10 or name == "reference to itself"


async def test_patterns_run_in_linear_time() -> None:
    with pytest.raises(ArgumentsError, match="does not match"):
        await check_arguments(spec({"pattern": "^(a+)+$"}), {"x": "a" * 5000 + "!"}, "tool")
    await check_arguments(spec({"pattern": "^(a+)+$"}), {"x": "a" * 5000}, "tool")


async def test_a_pattern_that_re2_does_not_know_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for value in ("ab", "ac"):
        await check_arguments(spec({"pattern": "^a(?!b)only_here"}), {"x": value}, "tool")
    assert caplog.text.count("not a valid RE2 pattern") == 1


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ([{"a": n, "b": [n]} for n in range(3000)], True),
        ([{"a": 1, "b": 2}, {"b": 2, "a": 1.0}], False),
        ([1, True, "1", [1], None, 0, False, ""], True),
        ([1, 1.0], False),
        ([[1, 2], [2, 1]], True),
        (["a", "a"], False),
    ],
)
async def test_unique_items(items: list[Any], unique: bool) -> None:
    check = check_arguments(spec({"type": "array", "uniqueItems": True}), {"x": items}, "tool")
    if unique:
        await check
    else:
        with pytest.raises(ArgumentsError, match="'x'.*non-unique"):
            await check


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x-a": 1, "x": "ok"}, None),
        ({"x-a": "one"}, "'x-a': 'one' is not of type 'integer'"),
        ({"y": 1}, r"'y' was unexpected"),
        ({"y": 1, "z": 2}, r"'y', 'z' were unexpected"),
    ],
)
async def test_properties_by_pattern(arguments: dict[str, Any], message: str | None) -> None:
    schema = {
        "type": "object",
        "properties": {"x": {"type": "string"}},
        "patternProperties": {"^x-": {"type": "integer"}},
        "additionalProperties": False,
    }
    check = check_arguments(ToolSpec("tool", "A tool.", schema), arguments, "tool")
    if message is None:
        await check
    else:
        with pytest.raises(ArgumentsError, match=message):
            await check


async def test_large_arguments_that_fit_pass() -> None:
    schema = {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}
    await check_arguments(spec(schema), {"x": [{"n": n} for n in range(20_000)]}, "tool")
    with pytest.raises(ArgumentsError, match=r"'x\[7\]\.n'"):
        await check_arguments(spec(schema), {"x": [{"n": n if n != 7 else "7"} for n in range(20_000)]}, "tool")


@pytest.mark.parametrize("number", [10**400, -(10**400), float("inf"), float("nan")])
@pytest.mark.parametrize("keyword", [{"multipleOf": 0.1}, {"multipleOf": 2}, {"maximum": 1e300}, {"type": "integer"}])
def test_numbers_that_cannot_be_computed_with_are_no_crash(number: float, keyword: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"x": keyword}}
    with contextlib.suppress(ArgumentsError):  # the one thing that it may raise
        asyncio.run(check_arguments(ToolSpec("tool", "A tool.", schema), {"x": number}, "tool"))
