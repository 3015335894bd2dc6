"""What the tools of an episode may know of its conversation.

Qwen-Agent's agents pass `messages` to every tool, and `files` to those with `file_access`; `image_zoom_in_tool` finds
its images there. Here that is the task's messages, and the images that calls gave since.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolrl.types import Media, Task


class EpisodeConversation:
    """One episode's, in Qwen-Agent's own types. All of it blocks: it belongs in a thread."""

    def __init__(self, task: Task, folder: Path) -> None:
        """`folder` takes the images of the task that aren't files."""
        self._schema = importlib.import_module("qwen_agent.llm.schema")
        self._folder = folder
        self._prompt = [
            self._message(
                "function" if message.role == "tool" else message.role,
                message.content,
                [self._file(it, f"{number}-{place}") for place, it in enumerate(message.media) if it.kind == "image"],
            )
            for number, message in enumerate(task.messages)
        ]
        self._heard: list[list[str]] = []

    def listen(self) -> list[str]:
        """A place for the images of one call. Places are asked for in the order of the calls, and filled as calls end,
        so that images stand in the same order whichever call ends first."""
        heard: list[str] = []
        self._heard.append(heard)
        return heard

    def known(self, tool: Any) -> dict[str, Any]:
        """Keyword arguments that an agent would call the tool with."""
        shown = [path for heard in list(self._heard) for path in list(heard)]
        messages = [*self._prompt, *([self._message("function", "", shown)] if shown else [])]
        if not tool.file_access:
            return {"messages": messages}
        items = [item for message in messages if isinstance(message.content, list) for item in message.content]
        files = dict.fromkeys(item.image or item.file for item in items if item.image or item.file)
        # Such a tool copies the files into its folder, and a file that is there already it would delete first.
        own = Path(str(getattr(tool, "work_dir", self._folder / "none")))
        return {"messages": messages, "files": [path for path in files if Path(path).parent != own]}

    def _message(self, role: str, text: str, images: Sequence[str]) -> Any:
        if not images:
            return self._schema.Message(role=role, content=text)
        items = [self._schema.ContentItem(image=path) for path in images]
        return self._schema.Message(role=role, content=[*items, self._schema.ContentItem(text=text)])

    def _file(self, media: Media, name: str) -> str:
        if not hasattr(media.data, "save"):
            return str(media.data)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{name}.png"
        media.data.save(path, "PNG")
        return str(path)
