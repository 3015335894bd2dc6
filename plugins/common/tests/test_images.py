"""Images come from data sets, tools and servers: what they can do is bounded before they are decoded."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from toolrl.errors import ChatFormatError
from toolrl_common.images import FORMATS, MAX_BYTES, MAX_PIXELS, load_image

Image = pytest.importorskip("PIL.Image")

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\n0 0 20 20 rectfill\nshowpage\n%%EOF\n"


def painted(kind: str, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (40, 30), 1).save(buffer, kind)
    return buffer.getvalue()


def png_that_says(width: int, height: int) -> bytes:
    """A PNG of so many pixels in one bit each, in a file of some kilobytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compressobj(9)
    body = b"".join(rows.compress(bytes(1 + width // 8)) for _ in range(height)) + rows.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", FORMATS)
def test_usual_formats_are_read(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "picture"
    file.write_bytes(painted(kind))
    for given in (file, str(file), file.read_bytes(), {"bytes": file.read_bytes(), "path": None}, Image.open(file)):
        image = load_image(given, "here")
        assert (image.mode, image.size) == ("RGB", (40, 30))


@pytest.mark.parametrize("kind", ["EPS", "TIFF", "PPM", "ICNS"])
def test_formats_whose_decoders_do_more_are_refused(kind: str, tmp_path: Path) -> None:
    content = EPS if kind == "EPS" else painted(kind, "RGBA" if kind == "ICNS" else "RGB")
    file = tmp_path / "picture.png"
    file.write_bytes(content)
    for given in (content, file, {"bytes": content}, Image.open(io.BytesIO(content))):
        with pytest.raises(ChatFormatError, match="PNG, JPEG"):
            load_image(given, "here")


def test_a_picture_that_would_fill_the_memory_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = png_that_says(13_000, 13_000)
    assert len(bomb) < 40_000
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was decoded"))
    for given in (bomb, Image.open(io.BytesIO(bomb))):
        with pytest.raises(ChatFormatError, match=str(MAX_PIXELS)):
            load_image(given, "here")


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero"), tmp_path / "missing"):
        with pytest.raises(ChatFormatError, match="image can't be read"):
            load_image(str(path), "here")


def test_files_have_a_greatest_size(tmp_path: Path) -> None:
    file = tmp_path / "large.png"
    file.write_bytes(painted("PNG"))
    os.truncate(file, MAX_BYTES + 1)
    with pytest.raises(ChatFormatError, match=f"more than {MAX_BYTES} bytes"):
        load_image(file, "here")


@pytest.mark.parametrize(
    "given", [b"", b"GIF89a", painted("PNG")[:60], painted("JPEG")[:90], 7, None, {}, {"bytes": ""}]
)
def test_what_is_no_image_is_an_error_for_people(given: Any) -> None:
    with pytest.raises(ChatFormatError, match="image can't be read"):
        load_image(given, "here")
