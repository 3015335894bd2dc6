"""Results of servers as answers for the model."""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl.errors import ToolError
from toolrl.types import ToolResult
from toolrl_plugin_mcp.contents import (
    MAX_IMAGES,
    has_images,
    read_result,
)

Image = pytest.importorskip("PIL.Image", reason="Pillow isn't installed")


def picture(width: int = 2, height: int = 3) -> str:
    file = io.BytesIO()
    Image.new("RGB", (width, height), (255, 0, 0)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def read(*contents: dict[str, Any], images: bool = True, **result: Any) -> ToolResult:
    return read_result({"content": list(contents), **result}, images=images)


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_images() -> None:
    image = {"type": "image", "data": picture(), "mimeType": "image/png"}
    result = read(text("look:"), image)
    assert result.text == "look:"
    assert [(item.kind, item.data.size, item.data.mode) for item in result.media] == [("image", (2, 3), "RGB")]
    noted = read(text("look:"), image, images=False)
    size = len(base64.b64decode(picture()))
    assert noted.media == ()
    assert noted.text == f"look:\n\n[image, image/png, {size} bytes]"


@pytest.mark.parametrize("data", ["", "not base64!", base64.b64encode(b"no image").decode(), picture()[:60]])
def test_images_that_are_none_become_words(data: str) -> None:
    result = read({"type": "image", "data": data, "mimeType": "image/png"})
    assert result.media == ()
    assert result.text.startswith("[image, image/png, which can't be shown: ")


def test_resources() -> None:
    inside = {"type": "resource", "resource": {"uri": "x://a", "text": "inside"}}
    zipped = {"type": "resource", "resource": {"uri": "x://b", "blob": "AAECAw==", "mimeType": "application/zip"}}
    scan = {"type": "resource", "resource": {"uri": "x://c", "blob": picture(), "mimeType": "image/png"}}
    link = {"type": "resource_link", "uri": "x://d", "name": "d", "description": "more"}
    result = read(inside, zipped, scan, link)
    assert result.text == "inside\n\n[resource x://b, application/zip, 4 bytes]\n\n[link to a resource: d, x://d, more]"
    assert len(result.media) == 1
    assert has_images({"content": [scan]})
    assert not has_images({"content": [inside, link]})


def test_audio_and_what_nobody_knows() -> None:
    result = read({"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"}, {"type": "smell"})
    assert result.text == "[audio, audio/wav, 4 bytes]\n\n[smell: this kind of content can't be shown]"


def test_errors_are_for_the_model() -> None:
    with pytest.raises(ToolError, match="no such file"):
        read(text("no such file"), isError=True)
    with pytest.raises(ToolError, match="didn't say why"):
        read(isError=True)
    with pytest.raises(ToolError, match=r"the key is \*\*\*"):
        read_result(
            {"content": [text("the key is hunter2")], "isError": True},
            images=False,
            hide=lambda words: words.replace("hunter2", "***"),
        )


def test_large_results_are_bounded() -> None:
    assert len(read(text("x" * 2_000_000)).text) < 1_000_100
    images = read(*[{"type": "image", "data": picture(), "mimeType": "image/png"}] * (MAX_IMAGES + 2))
    assert len(images.media) == MAX_IMAGES
    assert images.text == "[2 more images left out]"


_ANY = st.none() | st.booleans() | st.integers() | st.text()


@given(
    st.lists(
        st.fixed_dictionaries(
            {"type": st.sampled_from(["text", "image", "audio", "resource_link", "other"])},
            optional=dict.fromkeys(("text", "data", "mimeType", "uri", "name"), _ANY),
        )
    )
)
def test_any_content_is_an_answer(contents: list[dict[str, Any]]) -> None:
    assert isinstance(read(*contents).text, str)
    assert isinstance(read(*contents, images=False).text, str)
