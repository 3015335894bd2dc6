"""Arguments of resets, results of tools, what a server has: the parts without a connection."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from openenv_help import JSON

from toolrl.errors import ConfigError, DataError, TransientToolError
from toolrl.types import ToolSpec
from toolrl_plugin_openenv.episode import reset_arguments
from toolrl_plugin_openenv.options import EpisodeOptions
from toolrl_plugin_openenv.results import call_result, result_text
from toolrl_plugin_openenv.schema import pick_field
from toolrl_plugin_openenv.toolset import make_catalog
from toolrl_plugin_openenv.wire import Failure, Observed
from toolrl_testing import make_episode_context, make_task

SPEC = ToolSpec("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}})


# Arguments of a reset.


def test_arguments_of_a_reset() -> None:
    options = EpisodeOptions(
        reset={"level": 1, "word": "x", "seed": 5}, reset_fields={"word": "answer", "split": "part.name"}
    )
    task = make_task(
        answer="w", extra={"part": {"name": "test"}}, tools_kwargs={"game": {"create_kwargs": {"level": 2}}}
    )
    made = reset_arguments(options, "openenv/game", 0, make_episode_context(task))
    assert made == {"seed": 5, "level": 2, "word": "w", "split": "test"}


def test_a_group_has_one_seed_and_another_task_another() -> None:
    def seed(task_id: str, episode: int, run_seed: int = 0) -> Any:
        context = make_episode_context(make_task(id=task_id), seed=episode)
        return reset_arguments(EpisodeOptions(), "x", run_seed, context)["seed"]

    assert seed("a", 0) == seed("a", 1)
    assert len({seed("a", 0), seed("b", 0), seed("a", 0, 1)}) == 3
    assert 0 <= seed("\ud800", 0) < 2**31


def test_a_task_without_the_field_is_an_error_of_the_data() -> None:
    options = EpisodeOptions(reset_fields={"word": "solution"})
    with pytest.raises(DataError, match="solution"):
        reset_arguments(options, "x", 0, make_episode_context(make_task(extra={"other": 1})))


# Results of tools.


@pytest.mark.parametrize(
    ("kind", "message", "error", "said"),
    [
        ("execution_error", "no such file", "tool_error", "failed: no such file"),
        ("invalid_args", "at is missing.", "bad_arguments", 'Right form: {"at"'),
        ("tool_not_found", "Unknown tool: 'look'", "unknown_tool", "Available tools: look, go"),
        ("tool_not_found", "key not found", "tool_error", "failed: key not found"),
        ("timeout", "timed out after 30 seconds", "timeout", "look before you call it again"),
        ("something_new", "who knows", "tool_error", "failed: who knows"),
    ],
)
def test_error_types_become_answers(kind: str, message: str, error: str, said: str) -> None:
    observed = Observed({"tool_name": "look", "error": {"error_type": kind, "message": message}}, -0.5, True)
    result = call_result(observed, SPEC, ("look", "go"))
    assert said in result.text
    assert (result.error, result.reward, result.done) == (error, -0.5, True)


def test_a_tool_that_cant_be_reached_may_be_tried_again() -> None:
    failed = {"tool_name": "look", "error": {"error_type": "transport_error", "message": "gone"}}
    with pytest.raises(TransientToolError, match="gone"):
        call_result(Observed(failed), SPEC, ("look",))
    result = call_result(Observed(failed, 1.0), SPEC, ("look",))
    assert (result.error, result.reward) == ("unavailable", 1.0)


@pytest.mark.parametrize(
    ("result", "text", "failed"),
    [
        ("plain", "plain", False),
        (None, "", False),
        (7, "7", False),
        ({"data": {"a": 1}}, '{"a": 1}', False),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "data": 1}, "a\n\nb", False),
        ({"content": [{"type": "text", "text": "bad"}], "is_error": True}, "bad", True),
        ({"content": [{"type": "image", "mimeType": "image/png", "data": "xx"}]}, "[image, image/png]", False),
        ({"content": [{"type": "resource", "resource": {"text": "r"}}]}, "r", False),
        ({"content": [], "structured_content": {"b": 2}}, '{"b": 2}', False),
        ({"content": [3]}, "3", False),
    ],
)
def test_texts_of_results(result: Any, text: str, failed: bool) -> None:
    assert result_text(result) == (text, failed)


@given(JSON)
def test_any_result_becomes_a_text(result: Any) -> None:
    made = call_result(Observed({"tool_name": "look", "result": result, "error": None}), SPEC, ("look",))
    assert made.text.encode()


def test_errors_of_the_session_become_answers() -> None:
    errors = {"errors": [{"loc": ["arguments"], "msg": "Input should be a dict"}]}
    result = call_result(Failure("VALIDATION_ERROR", "Invalid message", errors), SPEC, ("look",))
    assert result.error == "bad_arguments"
    assert "arguments: Input should be a dict" in result.text
    assert call_result(Failure("EXECUTION_ERROR", "boom"), SPEC, ("look",)).error == "crash"


# What a server has.


def test_tools_get_names_and_schemas_that_can_be_used(caplog: pytest.LogCaptureFixture) -> None:
    listed = [
        {"name": "a b/c", "input_schema": {"type": "object"}},
        {"name": "9", "description": "Nine.", "inputSchema": {"properties": {"x": {"type": 7}}}},
        {"description": "no name"},
        "nonsense",
    ]
    catalog = make_catalog(listed, "here")
    assert [(spec.name, spec.description) for spec in catalog.specs] == [("a_b_c", "a b/c"), ("_9", "Nine.")]
    assert catalog.own_names == {"a_b_c": "a b/c", "_9": "9"}
    assert "can't be used" in caplog.text
    with pytest.raises(ConfigError, match="both called 'a_b'"):
        make_catalog([{"name": "a b"}, {"name": "a_b"}], "here")


@pytest.mark.parametrize(
    ("schema", "wanted", "field"),
    [
        ({"properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]}, None, ("a", "string")),
        ({"properties": {"a": {"type": "integer"}}}, None, ("a", "integer")),
    ],
)
def test_the_field_that_takes_what_is_said(schema: Any, wanted: str | None, field: tuple[str, str]) -> None:
    found = pick_field(schema, wanted, None)
    assert (found.name, found.kind) == field


@pytest.mark.parametrize(
    ("schema", "wanted", "said"),
    [
        ({"properties": {"a": {}, "b": {}}}, None, "which one"),
        ({"properties": {"a": {}, "b": {}}, "required": ["a", "b"]}, None, "which one"),
        ({"properties": {}}, None, "which one"),
        ({"properties": {"a": {}}}, "c", "no field 'c'"),
    ],
)
def test_a_field_that_isnt_clear_is_an_error(schema: Any, wanted: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        pick_field(schema, wanted, None)
