"""Tool `extract_frames`: shows the model frames of its task's video, and keeps them for the other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from toolrl.errors import ToolsetError
from toolrl.protocols import BuildContext, EpisodeContext
from toolrl.tools import Tool, ToolError
from toolrl.types import Media, ToolResult
from video_tools.frames import frames_of
from video_tools.options import ExtractOptions
from video_tools.video import BeyondEndError, VideoError, frames_at, probe

Second = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class Wanted(BaseModel):
    seconds: list[Second] = Field(min_length=1, max_length=16, description="The moments, in seconds from the start.")


class ExtractFrames(Tool):
    """Shows the frames of the video at some moments. Other tools know them by their numbers."""

    name = "extract_frames"

    def __init__(self, options: ExtractOptions | None = None, context: BuildContext | None = None) -> None:
        super().__init__(options or ExtractOptions(), context)
        self._videos: dict[str, Path] = {}

    def create(self, instance_id: str, video: str = "") -> None:
        """`video`: path of the file, below the option `root`. Raises ToolsetError for one that can't be read."""
        root = Path(self.options.root).resolve()
        path = (root / video).resolve()
        if not video or not path.is_relative_to(root) or not path.is_file():
            raise ToolsetError(
                f"the task names the video {video!r:.200}, which is no file below {str(root)!r}",
                where=self.name,
                hint="Each task needs tools_kwargs: {extract_frames: {create_kwargs: {video: PATH}}}.",
            )
        try:
            probe(path)
        except VideoError as error:
            raise ToolsetError(f"{path}: {error}", where=self.name, hint="Make or fetch the file again.") from error
        self._videos[instance_id] = path

    def execute(self, instance_id: str, parameters: Wanted, episode: EpisodeContext) -> ToolResult:
        """The frames as images, each with its number."""
        frames, options = frames_of(episode), self.options
        seconds = parameters.seconds
        frames.check_room(len(seconds), options.max_frames)  # before anything is decoded
        try:
            images = frames_at(self._videos[instance_id], seconds, options.longest_side)
        except BeyondEndError as error:
            raise ToolError(f"The video ends at {error.end:.1f} s. Ask for earlier seconds.") from error
        except VideoError as error:
            raise ToolError(f"The video is damaged: {error}. Try other seconds.") from error
        first = frames.add(images, options.max_frames)
        lines = [frame_line(number, second) for number, second in enumerate(seconds, first)]
        return ToolResult("\n".join(lines), media=tuple(Media("image", image) for image in images))

    async def release(self, instance_id: str, episode: EpisodeContext) -> None:
        """Let go of the frames."""
        self._videos.pop(instance_id, None)
        frames_of(episode).clear()


def frame_line(number: int, second: float) -> str:
    """What the model reads of a frame; the image stands at the mark."""
    return f"frame {number} at {second:.1f} s: <image>"
