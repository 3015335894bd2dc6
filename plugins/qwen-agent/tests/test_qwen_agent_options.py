"""Options, specs, guards of paths, and answers: what needs no library."""

from __future__ import annotations

import base64
import io
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from toolrl.errors import ArgumentsError, ConfigError, ToolError
from toolrl.tools.validation import compile_schema
from toolrl_plugin_qwen_agent import library
from toolrl_plugin_qwen_agent.guards import guarded
from toolrl_plugin_qwen_agent.options import QwenAgentOptions
from toolrl_plugin_qwen_agent.results import LONGEST, as_answer, error_for_model
from toolrl_plugin_qwen_agent.specs import schema_of, spec_of
from toolrl_plugin_qwen_agent.toolset import build
from toolrl_testing.fakes import make_build_context


@pytest.mark.parametrize(
    "tools",
    [[], [" "], [{}], [{"name": ""}], [{"name": 1}]],
)
def test_entries_that_are_none(tools: list[Any]) -> None:
    with pytest.raises(ValidationError):
        QwenAgentOptions(tools=tools)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "is_installed", lambda: False)
    with pytest.raises(ConfigError, match="qwen_agent isn't installed") as raised:
        build(QwenAgentOptions(tools=["storage"]), make_build_context("qwen_agent"))
    assert raised.value.hint == library.INSTALL
    assert library.check() == f"qwen_agent isn't installed, so its tools can't be used: {library.INSTALL}"


def test_files_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "is_installed", lambda: True)
    (tmp_path / "tools.py").touch()
    there, gone = str(tmp_path / "tools.py"), str(tmp_path / "gone.py")
    QwenAgentOptions(tools=["a", f"{there}:X", {"name": "m:X"}], folders=[str(tmp_path)]).check_files()
    for options in (
        {"tools": [f"{gone}:X"]},
        {"tools": [{"name": f"{gone}:X"}]},
        {"tools": ["a"], "imports": [gone]},
        {"tools": ["a"], "folders": [gone]},
    ):
        with pytest.raises(ConfigError, match="there is no"):
            QwenAgentOptions.model_validate(options).check_files()
    monkeypatch.setattr(library, "is_installed", lambda: False)
    with pytest.raises(ConfigError, match="qwen_agent isn't installed"):
        QwenAgentOptions(tools=["a"]).check_files()


def a_tool(**fields: Any) -> Any:
    return SimpleNamespace(**{"name": "t", "description": "d", "parameters": [], **fields})


def test_list_form() -> None:
    given_list = [
        {"name": "城市", "type": "string", "description": "名称", "required": True},
        {"name": "days", "type": "int", "required": False, "enum": [1, 2]},
        {"name": "where", "type": "dict", "properties": {"x": {"type": "number"}}, "required": ["x"]},
        {"name": "anything", "type": "file"},
    ]
    assert schema_of(given_list) == {
        "type": "object",
        "properties": {
            "城市": {"type": "string", "description": "名称"},
            "days": {"type": "integer", "enum": [1, 2]},
            "where": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
            "anything": {},
        },
        "required": ["城市"],
    }


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"type": "array"}, "expected 'object'"),
        ([{"type": "string"}], "a dict with a name"),
        ("a text", "expected a list of dicts"),
        ({"type": "object", "properties": {"a": {"type": "nonsense"}}}, "no JSON Schema"),
    ],
)
def test_what_is_no_schema(parameters: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        spec_of(a_tool(parameters=parameters))


def test_name_and_description() -> None:
    assert spec_of(a_tool(name="天气"), "weather").name == "weather"
    with pytest.raises(ValueError, match="tool name '天气'"):
        spec_of(a_tool(name="天气"))

    class Described:
        """What it does."""

        name, description, parameters = "d", "", ()

    assert spec_of(Described()).description == "What it does."


_ITEM = st.fixed_dictionaries(
    {"name": st.text(min_size=1)},
    optional={
        "type": st.one_of(
            st.text(), st.sampled_from(["string", "Int", "LIST", "bool"]), st.lists(st.text()), st.none()
        ),
        "description": st.text(),
        "required": st.one_of(st.booleans(), st.just("true"), st.none()),
    },
)


@given(st.lists(_ITEM, max_size=5))
def test_every_list_gives_a_sound_schema(items: list[dict[str, Any]]) -> None:
    schema = schema_of(items)
    compile_schema(schema)
    assert set(schema["properties"]) == {item["name"] for item in items}
    assert set(schema["required"]) <= set(schema["properties"])


class ContentItem:
    """In the shape of qwen_agent.llm.schema.ContentItem."""

    def __init__(self, **given: Any) -> None:
        for kind in ("text", "image", "file", "audio", "video"):
            setattr(self, kind, given.get(kind))


def png(size: tuple[int, int] = (4, 3)) -> bytes:
    image = pytest.importorskip("PIL.Image").new("RGB", size, "red")
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def test_plain_values() -> None:
    assert as_answer("text", images=False).text == "text"
    assert as_answer({"城": [1]}, images=False).text == json.dumps({"城": [1]}, ensure_ascii=False, indent=4)
    assert as_answer([], images=False).text == "[]"
    assert as_answer(None, images=False).text == "null"
    assert as_answer(["a", 1], images=False).text == '[\n    "a",\n    1\n]'
    assert as_answer({"path": Path("x")}, images=False).text == '{\n    "path": "x"\n}'
    with pytest.raises(TypeError, match="generator"):
        as_answer((item for item in "ab"), images=False)


def test_texts_and_notes() -> None:
    answer = as_answer([ContentItem(text="a"), ContentItem(file="b.pdf"), ContentItem(image="c.png")], images=False)
    assert (answer.text, answer.media) == ("a\n[file: b.pdf]\n[image: c.png]", ())
    assert as_answer(ContentItem(text=""), images=False).text == ""


def test_images(tmp_path: Path) -> None:
    (tmp_path / "a b.png").write_bytes(png())
    uri = "data:image/png;base64," + base64.b64encode(png((5, 5))).decode()
    address = (tmp_path / "a b.png").as_uri()
    items = [ContentItem(image=it) for it in (str(tmp_path / "a b.png"), address, uri, "https://example.com/x.png")]
    answer = as_answer(items, images=True)
    assert [media.data.size for media in answer.media] == [(4, 3), (4, 3), (5, 5)]
    assert answer.text == "[image: https://example.com/x.png]"


def test_broken_images_are_told(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    (tmp_path / "x.png").write_bytes(b"no image")
    for path in (str(tmp_path / "x.png"), str(tmp_path / "none.png"), "data:image/png;base64,%%%", "data:,x", "a\x00"):
        answer = as_answer([ContentItem(image=path)], images=True)
        assert answer.media == ()
        assert answer.text.startswith("[image that can't be shown: ")


class ModelServiceError(Exception):
    """In the shape of qwen_agent.llm.base.ModelServiceError."""

    def __init__(self, code: str | None = None, exception: Exception | None = None) -> None:
        super().__init__(f"\nError code: {code}.")
        self.code, self.exception = code, exception


def test_errors_for_the_model() -> None:
    meant = error_for_model(ValueError("no such city"))
    assert isinstance(meant, ToolError)
    assert (meant.message, meant.transient) == ("ValueError: no such city", False)
    assert error_for_model(FileNotFoundError("x")).message == "FileNotFoundError: x"  # type: ignore[attr-defined]
    assert len(str(error_for_model(ValueError("x" * 10_000)))) < LONGEST + 10
    with pytest.raises(jsonschema.ValidationError) as raised:
        jsonschema.validate({"a": 1}, {"properties": {"a": {"type": "string"}}})
    assert isinstance(error_for_model(raised.value), ArgumentsError)
    assert str(error_for_model(raised.value)) == "Bad arguments at ['a']: 1 is not of type 'string'"


def test_busy_services_are_transient() -> None:
    for error, transient in (
        (ModelServiceError("429"), True),
        (ModelServiceError("400"), False),
        (ModelServiceError(exception=TimeoutError("late")), True),
        (ConnectionResetError("gone"), True),
        (ValueError("x"), False),
    ):
        meant = error_for_model(error)
        assert isinstance(meant, ToolError)
        assert meant.transient is transient


@pytest.mark.parametrize(
    "error", [KeyError("x"), TypeError("x"), AttributeError("x"), RecursionError("x"), ImportError("x")]
)
def test_mistakes_of_the_tool_stay_crashes(error: Exception) -> None:
    assert error_for_model(error) is error


_PARTS = st.lists(st.sampled_from(["..", ".", "", "a", "etc", "~", "file:", "passwd", "%2e%2e", "\\"]), max_size=8)
KEYS = st.one_of(st.text(max_size=30), _PARTS.map("/".join), _PARTS.map(lambda parts: "/" + "/".join(parts)))


def builtin(name: str, **fields: Any) -> Any:
    """An object of a class that looks like one of qwen_agent."""
    return type(name, (), {"__module__": f"qwen_agent.tools.{name.lower()}", **fields})()


@given(KEYS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_keys_of_the_storage(tmp_path: Path, key: str) -> None:
    root = tmp_path / "root"
    try:
        arguments = guarded(builtin("Storage", root=str(root)), {"operate": "get", "key": key}, (), urls=False)
    except ToolError:
        return
    read = arguments["key"].removeprefix("/")  # As the tool does.
    assert Path(os.path.realpath(os.path.join(root, read))).is_relative_to(os.path.realpath(root))  # noqa: PTH118


@given(KEYS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_paths_of_documents(tmp_path: Path, given_path: str) -> None:
    (tmp_path / "in" / "etc").mkdir(parents=True, exist_ok=True)
    for name in ("a", "passwd", "in/a", "in/etc/passwd"):
        (tmp_path / name).touch()
    tool = builtin("Retrieval")
    try:
        arguments = guarded(tool, {"files": [given_path]}, (tmp_path / "in",), urls=False)
    except ToolError:
        return
    (path,) = map(Path, arguments["files"])
    assert path.is_file()
    assert path == path.resolve()
    assert path.is_relative_to((tmp_path / "in").resolve())


@pytest.mark.parametrize("name", ["SimpleDocParser", "DocParser", "WebExtractor"])
def test_addresses(name: str) -> None:
    arguments = {"url": "https://example.com/x"}
    assert guarded(builtin(name), arguments, (), urls=True) == arguments
    if name == "WebExtractor":
        assert guarded(builtin(name), arguments, (), urls=False) == arguments
    else:
        with pytest.raises(ToolError, match="can't fetch"):
            guarded(builtin(name), arguments, (), urls=False)
    for wrong in ("/etc/passwd", "file:///etc/passwd", ["https://example.com"], None, 3):
        with pytest.raises(ToolError):
            guarded(builtin(name), {"url": wrong}, (), urls=True)


@pytest.mark.parametrize("wrong", ['["/etc/passwd"]', [None], [["x"]]])
def test_files_of_a_wrong_kind(wrong: Any) -> None:
    with pytest.raises(ToolError):
        guarded(builtin("Retrieval"), {"files": wrong}, (), urls=True)


def test_tools_of_ones_own_are_left_alone() -> None:
    class Storage:
        root = "/nowhere"

    arguments = {"key": "../x", "url": "/etc/passwd"}
    assert guarded(Storage(), arguments, (), urls=False) == arguments
