"""Frames of real video files, as the video example's first tool takes them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

av = pytest.importorskip("av", reason="needs PyAV: pip install av")
Image = pytest.importorskip("PIL.Image")

from toolrl.errors import ToolsetError  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "examples" / "video" / "tools"))
video: Any = pytest.importorskip("video_tools.video")
extract: Any = pytest.importorskip("video_tools.extract")


def write_video(path: Path, *, codec: str = "mpeg4") -> Path:
    """Frame n of 30, at 8 a second, is a grey of brightness 8·n; key frames are seldom."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=8)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.gop_size = 20
        if codec == "mpeg4":
            stream.codec_context.options = {"sc_threshold": "1000000000"}
        for number in range(30):
            image = Image.new("RGB", (64, 48), (8 * number,) * 3)
            container.mux(stream.encode(av.VideoFrame.from_image(image)))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize(("codec", "ending"), [("mpeg4", "mp4"), ("libx264", "mkv"), ("libvpx-vp9", "webm")])
def test_a_frame_is_the_one_that_is_shown_at_the_second(tmp_path: Path, codec: str, ending: str) -> None:
    """Also in the middle between key frames, and where frames are stored out of order."""
    if codec not in av.codecs_available:
        pytest.skip(f"this PyAV has no {codec}")
    path = write_video(tmp_path / f"v.{ending}", codec=codec)
    images = video.frames_at(path, [0.0, 0.12, 0.13, 1.0, 2.51, 3.7, 0.5], 448)
    greys = [image.convert("L").resize((1, 1)).getpixel((0, 0)) for image in images]
    assert [round(grey / 8) for grey in greys] == [0, 0, 1, 8, 20, 29, 4]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\n{part}\n#EXT-X-ENDLIST\n"),
        ("list.mp4", "ffconcat version 1.0\nfile 'part.ts'\n"),
        ("../part.ts", ""),
        ("/etc/passwd", ""),
    ],
)
def test_a_name_or_a_playlist_leads_to_no_other_file(tmp_path: Path, name: str, text: str) -> None:
    part = write_video(tmp_path / "part.ts")
    root = tmp_path if text else tmp_path / "inner"
    root.mkdir(exist_ok=True)
    if text:
        (root / name).write_text(text.format(part=part))
        with (root / name).open("rb") as file, av.open(file) as container:
            assert container.streams.video, "PyAV itself would follow it"
    tool = extract.ExtractFrames(extract.ExtractOptions(root=str(root)))
    with pytest.raises(ToolsetError, match="it can't be decoded" if text else "which is no file below"):
        tool.create("i", video=name)
