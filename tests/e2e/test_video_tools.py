"""The four tools of the video example, with real video files and real models of random weights."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

numpy = pytest.importorskip("numpy")
for name in ("torch", "transformers", "PIL", "tokenizers"):
    pytest.importorskip(name)
av = pytest.importorskip("av", reason="needs PyAV: pip install av")

from PIL import Image  # noqa: E402

from toolrl.errors import ToolsetError  # noqa: E402
from toolrl.protocols import BuildContext  # noqa: E402
from toolrl.tools.toolbox import ToolBox, ToolEntry  # noqa: E402
from toolrl.tools.toolset import as_toolset  # noqa: E402
from toolrl.types import ToolCall, ToolResult  # noqa: E402
from toolrl_testing import make_episode_context, make_task  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "video"
NAMES = ("extract_frames", "detect_objects", "caption_frame", "check_answer")
RATE, FRAMES = 8, 30
"""A video's frames a second, and in all: it ends at 3.75 s."""


@pytest.fixture(scope="module", autouse=True)
def tools() -> Any:
    """The tools' package is importable, as if it were installed."""
    sys.path.insert(0, str(EXAMPLE / "tools"))
    yield
    sys.path.remove(str(EXAMPLE / "tools"))


def of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"video_tools.{module}"), name)


def write_video(path: Path, *, codec: str = "mpeg4", frames: int = FRAMES) -> Path:
    """Frame n is a grey of brightness 8·n; a key frame stands at the beginning, and seldom behind it."""
    size = (64, 48)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=RATE)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = 20
        if codec == "mpeg4":
            stream.codec_context.options = {"sc_threshold": "1000000000"}
        for number in range(frames):
            image = Image.new("RGB", size, (8 * number,) * 3)
            container.mux(stream.encode(av.VideoFrame.from_image(image)))
        container.mux(stream.encode())
    return path


def number_of(image: Any) -> int:
    """The frame that an image is."""
    return round(image.convert("L").resize((1, 1)).getpixel((0, 0)) / 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two videos, and the two models, untrained."""
    folder = tmp_path_factory.mktemp("video")
    write_video(folder / "a.mp4")
    write_video(folder / "b.mp4", frames=10)
    command = [sys.executable, str(EXAMPLE / "make_viewers.py"), str(folder), "--steps", "0"]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def build(folder: Path, **options: Any) -> ToolBox:
    """The four tools of an environment; `options` of `extract_frames`."""
    ready = {
        "extract_frames": of("options", "ExtractOptions")(root=str(folder), **options),
        "detect_objects": of("options", "ViewerOptions")(model=str(folder / "detector")),
        "caption_frame": of("options", "CaptionOptions")(model=str(folder / "captioner")),
        "check_answer": of("options", "CheckOptions")(),
    }
    modules = {
        "extract_frames": ("extract", "ExtractFrames"),
        "detect_objects": ("viewers", "DetectObjects"),
        "caption_frame": ("viewers", "CaptionFrame"),
        "check_answer": ("check", "CheckAnswer"),
    }
    context = BuildContext("tools")
    return ToolBox([ToolEntry(name, as_toolset(of(*modules[name]), ready[name], context)) for name in NAMES])


def kwargs(video: str = "a.mp4", **more: dict[str, Any]) -> dict[str, Any]:
    """A task's `tools_kwargs`."""
    given: dict[str, dict[str, Any]] = {
        "extract_frames": {"video": video},
        "detect_objects": {"threshold": 0.0},
        "caption_frame": {"max_new_tokens": 4},
        "check_answer": {"ground_truth": "Red square", "attempts": 2},
    }
    return {name: {"create_kwargs": {**given[name], **more.get(name, {})}} for name in NAMES}


class Episode:
    """One episode's tools, called one by one."""

    def __init__(self, session: Any, shared: dict[str, Any]) -> None:
        self._session = session
        self.shared = shared

    async def turn(self, *calls: tuple[str, dict[str, Any]]) -> Sequence[ToolResult]:
        items = [ToolCall(name, arguments, id=f"call_{number}") for number, (name, arguments) in enumerate(calls)]
        return [record.result for record in await self._session.answer(items)]

    async def call(self, tool: str, **arguments: Any) -> ToolResult:
        (result,) = await self.turn((tool, arguments))
        return result

    @property
    def frames(self) -> Any:
        (frames,) = self.shared.values()
        return frames


@asynccontextmanager
async def opened(box: ToolBox, tools_kwargs: dict[str, Any] | None = None) -> AsyncIterator[Episode]:
    task = make_task(tools_kwargs=tools_kwargs or kwargs())
    context = make_episode_context(task)
    async with box.open(task, context) as session:
        yield Episode(session, context.shared)


# Frames.


@pytest.mark.parametrize(("codec", "ending"), [("mpeg4", "mp4"), ("libx264", "mkv"), ("libvpx-vp9", "webm")])
def test_a_frame_is_the_one_that_is_shown_at_the_second(tmp_path: Path, codec: str, ending: str) -> None:
    """Also in the middle between key frames, and where frames are stored out of order."""
    if codec not in av.codecs_available:
        pytest.skip(f"this PyAV has no {codec}")
    path = write_video(tmp_path / f"v.{ending}", codec=codec)
    seconds = [0.0, 0.12, 0.13, 1.0, 2.51, 3.7, 0.5]
    images = of("video", "frames_at")(path, seconds, 448)
    assert [number_of(image) for image in images] == [0, 0, 1, 8, 20, 29, 4]
    assert {image.size for image in images} == {(64, 48)}


async def test_the_tool_shows_frames_and_numbers_them_over_the_episode(folder: Path) -> None:
    async with opened(build(folder, longest_side=32)) as episode:
        first = await episode.call("extract_frames", seconds=[1.0, 3.0])
        second = await episode.call("extract_frames", seconds=[0])
        assert first.text == "frame 0 at 1.0 s: <image>\nframe 1 at 3.0 s: <image>"
        assert second.text == "frame 2 at 0.0 s: <image>"
        assert [media.kind for media in first.media] == ["image", "image"]
        assert [number_of(media.data) for media in (*first.media, *second.media)] == [8, 24, 0]
        assert first.media[0].data.size == (32, 24)


@pytest.mark.parametrize(
    ("seconds", "kind", "text"),
    [
        ([3.75], "tool_error", "The video ends at 3.8 s. Ask for earlier seconds."),
        ([-1], "bad_arguments", "'seconds[0]': -1 is less than the minimum of 0"),
        ([], "bad_arguments", "Bad arguments for the tool 'extract_frames': 'seconds'"),
        ([0, 1, 2, 3, 3], "tool_error", "At most 4 frames can be extracted, and there are 0 already. Ask for 4 or"),
    ],
)  # fmt: skip
async def test_seconds_that_cannot_be_are_told(folder: Path, seconds: list[Any], kind: str, text: str) -> None:
    async with opened(build(folder, max_frames=4)) as episode:
        result = await episode.call("extract_frames", seconds=seconds)
        assert result.error == kind, result.text
        assert text.lower() in result.text.lower()
        assert sum(map(len, episode.shared.values())) == 0, "a call that failed keeps no frame"
        assert (await episode.call("extract_frames", seconds=[0, 1, 2, 3])).error is None
        full = await episode.call("extract_frames", seconds=[0])
        assert full.text == "At most 4 frames can be extracted, and there are 4 already. Use those."


def is_refused(root: Path, video: str, said: str) -> None:
    tool = of("extract", "ExtractFrames")(of("options", "ExtractOptions")(root=str(root)))
    with pytest.raises(ToolsetError, match=said):
        tool.create("i", video=video)


@pytest.mark.parametrize("name", ["list.m3u8", "list.mp4"])
def test_a_playlist_leads_to_no_other_file(folder: Path, name: str) -> None:
    write_video(folder / "part.ts")
    segments = f"#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\n{folder / 'part.ts'}\n#EXT-X-ENDLIST\n"
    text = segments if name.endswith("m3u8") else "ffconcat version 1.0\nfile 'part.ts'\n"
    (folder / name).write_text(text)
    with (folder / name).open("rb") as file, av.open(file) as container:
        assert container.streams.video, "PyAV itself would follow it"
    is_refused(folder, name, f"{name}: it can't be decoded")


@pytest.mark.parametrize("video", ["", "../a.mp4", "/etc/passwd"])
def test_a_path_that_leads_elsewhere_fails_the_episode(folder: Path, video: str) -> None:
    root = folder / "inner"
    root.mkdir(exist_ok=True)
    is_refused(root, video, "which is no file below")


def test_a_file_that_is_cut_off_fails_the_episode_with_its_name(folder: Path) -> None:
    whole = (folder / "a.mp4").read_bytes()
    (folder / "cut.mp4").write_bytes(whole[: len(whole) // 2])  # The index of an MP4 file stands at its end.
    is_refused(folder, "cut.mp4", "cut.mp4")


# Models that look.


async def test_both_models_look_at_the_frame_that_is_named(folder: Path) -> None:
    """What the tools say is what their pipelines say of that frame."""
    from transformers import pipeline

    (image,) = of("video", "frames_at")(folder / "a.mp4", [2.0], 448)
    (found,) = pipeline("object-detection", model=str(folder / "detector"), device="cpu")(image, threshold=0.0)
    captioner = pipeline("image-text-to-text", model=str(folder / "captioner"), device="cpu")
    settings = {"do_sample": False, "max_new_tokens": 4}
    said = captioner(images=image, text="a", generate_kwargs=settings)[0]["generated_text"]

    async with opened(build(folder)) as episode:
        await episode.call("extract_frames", seconds=[0, 2])
        detected, captioned = await episode.turn(("detect_objects", {"frame": 1}), ("caption_frame", {"frame": 1}))
        assert detected.text.startswith(f"{found['label']} {found['score']:.2f} at ")
        corners = [int(part) for part in detected.text.rpartition(" ")[2].split(",")]
        assert all(0 <= corner <= most for corner, most in zip(corners, (64, 48, 64, 48), strict=True))
        assert captioned.text == said.strip()


@pytest.mark.parametrize("tool", ["detect_objects", "caption_frame"])
async def test_a_frame_that_is_not_there_is_told(folder: Path, tool: str) -> None:
    async with opened(build(folder)) as episode:
        early = await episode.call(tool, frame=0)
        assert (early.error, early.text[:42]) == ("tool_error", "There is no frame yet. Call extract_frames")
        await episode.call("extract_frames", seconds=[0, 1])
        for number in (2, -1):
            wrong = await episode.call(tool, frame=number)
            assert wrong.text == f"There is no frame {number}. There are frames 0 to 1."
        assert (await episode.call(tool, frame="last")).error == "bad_arguments"


# The check of answers.


async def test_answers_are_checked_as_often_as_the_task_allows(folder: Path) -> None:
    async with opened(build(folder)) as episode:
        wrong = await episode.call("check_answer", answer="blue square")
        right = await episode.call("check_answer", answer=" red  SQUARE. ")
        assert (wrong.text, wrong.reward) == ("That is wrong.", -0.05)
        assert (right.text, right.reward) == ("That is right.", 0.0)
        more = await episode.call("check_answer", answer="red square")
        assert (more.error, more.text) == ("tool_error", "No more answers are checked. Give your final answer now.")
        assert more.reward is None
