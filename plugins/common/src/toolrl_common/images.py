"""Reads image files that data sets, tools and servers give. All of them come from outside, so they are bounded.

Pillow alone would start ghostscript for an EPS file, wait for ever on a FIFO, and fill the memory with a picture whose
file has some kilobytes.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolrl.errors import ChatFormatError

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
"""Pillow knows many more, some of which start other programs."""
MAX_BYTES = 32 * 2**20
"""Of one file."""
MAX_PIXELS = 32 * 2**20
"""Of one image."""


def read_image(data: Any) -> Any:
    """A PIL image in RGB from one, from a path, or from a file's bytes. Blocks.

    Raises ValueError for another format, for what is no regular file, for more than `MAX_BYTES`, and for more than
    `MAX_PIXELS`; ImportError without pillow.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        if isinstance(data, str | Path):
            data = _file(Path(data))
        if isinstance(data, bytes | bytearray | memoryview):
            if len(data) > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_BYTES} bytes")
            data = Image.open(io.BytesIO(data), formats=FORMATS)
        if not isinstance(data, Image.Image):
            raise ValueError(f"expected a PIL image, a path or a file's bytes, got {type(data).__name__}")
        # An image that was opened elsewhere is decoded here: `convert` reads it.
        if getattr(data, "format", None) not in (None, *FORMATS):
            raise ValueError(f"it is a {data.format}, expected one of {', '.join(FORMATS)}")
        if data.width * data.height > MAX_PIXELS:
            raise ValueError(f"it has {data.width} by {data.height} pixels, and at most {MAX_PIXELS} are read")
        return data.convert("RGB")
    except UnidentifiedImageError:
        raise ValueError(f"it is no {', '.join(FORMATS)}, or a broken one") from None
    except ValueError:
        raise
    except Exception as error:  # noqa: BLE001 - a broken file can break its decoder in any way
        raise ValueError(f"{type(error).__name__}: {error}") from None


def load_image(data: Any, where: str) -> Any:
    """A PIL image in RGB from one, from a path, from a file's bytes, or from `{"bytes": …, "path": …}` as data sets
    hold them. Raises ChatFormatError."""
    if isinstance(data, Mapping):
        data = data.get("bytes") or data.get("path")
    try:
        return read_image(data)
    except ImportError as error:
        raise ChatFormatError(
            "messages hold images, and pillow isn't installed", where=where, hint="pip install 'toolrl[images]'"
        ) from error
    except ValueError as error:
        raise ChatFormatError(
            f"an image can't be read: {error}", where=where, hint="Check the data set's images, or the tool's result."
        ) from error


def _file(path: Path) -> bytes:
    # Without O_NONBLOCK a FIFO would be waited for before anything could be asked of it.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is no regular file")
        return file.read(MAX_BYTES + 1)
