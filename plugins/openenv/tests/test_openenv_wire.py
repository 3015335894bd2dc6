"""Messages, places, actions, observations: the parts without a connection."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openenv_help import JSON
from openenv_wire_server import TOOLS, FakeServer, in_thread
from pydantic import ValidationError

from toolrl.cli.main import main
from toolrl.config.load import check_config
from toolrl_plugin_openenv.actions import ActionError, ActionReader
from toolrl_plugin_openenv.connection import Address
from toolrl_plugin_openenv.observations import make_show, observation_text
from toolrl_plugin_openenv.options import ActionOptions, GymnasiumOptions, OpenEnvOptions
from toolrl_plugin_openenv.wire import Failure, Observed, read_answer
from toolrl_testing import FakeChatFormat

# Messages.


@given(st.text() | st.binary() | JSON.map(json.dumps))
def test_reading_an_answer_is_total(raw: str | bytes) -> None:
    assert isinstance(read_answer(raw), Observed | Failure)


@given(
    st.sampled_from(["observation", "error", "state", "mcp", 7]),
    st.dictionaries(st.sampled_from(["observation", "reward", "done", "code", "message"]), JSON),
)
def test_reading_an_answer_of_the_right_shape_is_total(kind: Any, data: Any) -> None:
    answer = read_answer(json.dumps({"type": kind, "data": data}))
    if isinstance(answer, Observed) and answer.reward is not None:
        assert abs(answer.reward) <= 1e100


@pytest.mark.parametrize(
    ("url", "websocket", "schema"),
    [
        ("http://h:1", "ws://h:1/ws", "http://h:1/schema"),
        ("https://h/base/", "wss://h/base/ws", "https://h/base/schema"),
        ("ws://h/ws", "ws://h/ws", "http://h/schema"),
        ("wss://h/?key=abcd", "wss://h/ws?key=abcd", "https://h/schema?key=abcd"),
    ],
)
def test_addresses(url: str, websocket: str, schema: str) -> None:
    address = Address(url)
    assert (address.websocket, address.http("/schema")) == (websocket, schema)


def test_an_address_hides_its_secrets() -> None:
    address = Address("http://user:passwort@h/?key=abcd", {"Authorization": "Bearer tokentoken"})
    assert address.shown == "http://h/"
    assert address.hide("passwort, key=abcd, Bearer tokentoken") == "***, ***, ***"


# Actions.


@pytest.mark.parametrize(
    ("options", "kind", "text", "action"),
    [
        ({}, "string", "  go north \n", "go north"),
        ({}, "integer", " 7 ", 7),
        ({}, "number", "0.5", 0.5),
        ({}, "boolean", "True", True),
        ({}, "array", "[1, 2]", [1, 2]),
        ({"pattern": r"<a>(.*?)</a>"}, "string", "<a>x</a> or rather <a> y </a>", "y"),
        ({"pattern": r"go \w+"}, "string", "I go home", "go home"),
        ({"pattern": r"(\w+) (?P<action>\d+)"}, "integer", "say 12", 12),
        ({"choices": ["left", "Right"]}, "integer", " RIGHT ", 1),
        ({"choices": ["left", "Right"]}, "string", "right", "Right"),
        ({"choices": {"up": [0, 1]}}, None, "Up", [0, 1]),
        ({"choices": ["1", "2"], "pattern": r"\d"}, "integer", "I take 2.", 1),
    ],
)
def test_actions(options: dict[str, Any], kind: str | None, text: str, action: Any) -> None:
    assert ActionReader(ActionOptions(**options), kind).read(text) == action


@pytest.mark.parametrize(
    ("options", "kind", "text", "said"),
    [
        ({}, "string", " ", "empty"),
        ({}, "integer", "seven", "no whole number"),
        ({}, "integer", "9" * 5000, "no whole number"),
        ({}, "number", "nan", "no number"),
        ({}, "boolean", "yes", "neither"),
        ({}, "object", "[]", "no JSON object"),
        ({}, "array", "[" * 90_000, "no JSON array"),
        ({"pattern": "<a>(.*?)</a>"}, "string", "x", "<a>(.*?)</a>"),
        ({"choices": ["left", "right"]}, "string", "up", "one of: left, right"),
        ({"choices": ["left"], "pattern": "<a>(.*)</a>"}, "string", "x", "one of: left"),
    ],
)
def test_what_is_no_action_is_told_so(options: dict[str, Any], kind: str, text: str, said: str) -> None:
    with pytest.raises(ActionError) as raised:
        ActionReader(ActionOptions(**options), kind).read(text)
    assert said in str(raised.value)
    assert len(str(raised.value)) < 400


def test_only_the_end_of_a_long_turn_is_searched() -> None:
    reader = ActionReader(ActionOptions(pattern="<a>(.*?)</a>"))
    assert reader.read("<a>" * 200_000 + "<a>x</a>").endswith("x")
    with pytest.raises(ActionError):
        reader.read("<a>x</a>" + " " * 5000)


@pytest.mark.parametrize(
    ("model", "given_", "said"),
    [
        (OpenEnvOptions, {"url": "localhost:8000"}, "pattern"),
        (OpenEnvOptions, {"url": "http://h", "env_vars": {"A": "1"}}, "env_vars needs"),
        (GymnasiumOptions, {}, "either"),
        (GymnasiumOptions, {"id": "A-v0", "target": "a:B"}, "either"),
        (GymnasiumOptions, {"target": "a.b"}, "pattern"),
    ],
)
def test_options_that_are_refused(model: Any, given_: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        model.model_validate(given_)


def test_the_option_replay_of_older_configs_has_no_effect() -> None:
    pytest.importorskip("toolrl_plugin_torch", reason="a whole config needs a trainer; `nox -s older_mcp` has one")
    tools = [{"use": "openenv", "options": {"url": "http://h", "reconnect": {"replay": True, "attempts": 3}}}]
    data = {"train": {"use": "jsonl", "options": {"path": "rows.jsonl"}}}
    config = check_config({"model": {"path": "m"}, "data": data, "environments": {"default": {"tools": tools}}}).config
    (use,) = config.environments["default"].tools
    assert use.options == {"url": "http://h", "reconnect": {"attempts": 3}}


# Observations.


@pytest.mark.parametrize(
    ("observation", "paths", "text"),
    [
        ("a text", None, "a text"),
        ({"text": "x", "metadata": {"a": 1}, "none": None}, None, "x"),
        ({"metadata": {"a": 1}}, None, ""),
        ({"a": "x", "b": 2}, None, '{"a": "x", "b": 2}'),
        ([1, 2], None, "[1, 2]"),
        (None, None, ""),
        ({"a": {"b": ["x", "y"]}, "c": 5}, ["a.b.-1", "c", "d.e"], "y\n\n5"),
        ({"a": "x"}, ["b"], ""),
    ],
)
def test_texts_of_observations(observation: Any, paths: list[str] | None, text: str) -> None:
    assert observation_text(observation, paths) == text


def test_half_surrogates_and_long_observations() -> None:
    show = make_show(None, FakeChatFormat(), 60)
    assert show({"text": "a\ud800b"}) == "a?b"
    assert len(show({"text": "x" * 5000})) <= 60


# `toolrl openenv show`.


def test_it_prints_tools_or_the_first_observation(capsys: pytest.CaptureFixture[str]) -> None:
    server = in_thread(FakeServer(tools=TOOLS))
    assert main(["openenv", "show", server.url]) == 0
    shown = capsys.readouterr().out
    assert 'echo {"text": string}' in shown
    assert "shows nothing" in shown
    talk = in_thread(FakeServer())
    assert main(["openenv", "show", talk.url]) == 0
    assert "Ready." in capsys.readouterr().out


def test_what_is_no_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["openenv", "show", "127.0.0.1:8000"]) != 0
    assert "url" in capsys.readouterr().err


def test_a_path_that_leads_nowhere_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    show = make_show(["text", "txet", "end"], None, 60)
    for step in range(40):
        assert show({"text": "a", "end": "b" if step == 12 else None}) == ("a\n\nb" if step == 12 else "a")
    (line,) = [record.getMessage() for record in caplog.records]
    assert "'txet'" in line
    assert "text, end" in line
