"""What a tool returns and raises, as an answer."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from toolrl.errors import ArgumentsError, ToolError
from toolrl_plugin_qwen_agent.results import LONGEST, as_answer, error_for_model


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
    for given in (str(tmp_path / "x.png"), str(tmp_path / "none.png"), "data:image/png;base64,%%%", "data:,x", "a\x00"):
        answer = as_answer([ContentItem(image=given)], images=True)
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
