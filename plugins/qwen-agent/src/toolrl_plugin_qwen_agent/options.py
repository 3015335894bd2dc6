"""Options of the toolset `qwen_agent`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator

from toolrl.errors import ConfigError


class QwenAgentOptions(BaseModel, extra="forbid", frozen=True):
    """Options of the toolset `qwen_agent`."""

    tools: list[str | dict[str, Any]] = Field(
        min_length=1,
        description="As `function_list` of a Qwen-Agent agent: a registered name, or a dict of `name` and the tool's "
        "own settings, or a dict of `mcpServers`. Where a name stands, `module:Class` and `FILE.py:Class` may stand "
        "too. The key `as` gives a tool another name.",
    )
    imports: list[str] = Field(
        default_factory=list,
        description="Modules or .py files that register tools; imported before these are looked up.",
    )
    instances: Literal["episode", "thread", "process"] = Field(
        "episode",
        description="`episode`: each episode has tool objects and a scratch folder of its own, and calls of one object "
        "run one after the other. `thread`: besides, each object is made and called in a thread of its own. `process`: "
        "all episodes share one object a tool, in many threads at once.",
    )
    images: Literal["auto", "media", "note"] = Field(
        "auto",
        description="Images in answers: `media` for the model, `note` in words, `auto` by what the model takes.",
    )
    folders: list[str] = Field(
        default_factory=list,
        description="Folders that the built-in document tools may read from, besides the episode's own. A relative "
        "path that the model gives is looked up in them.",
    )
    urls: bool = Field(
        False, description="Let the built-in document tools fetch whatever http(s) address the model gives."
    )
    unisolated: bool = Field(
        False,
        description="Let the built-in `PythonExecutor` run the model's code here, with the run's own rights.",
    )

    @property
    def entries(self) -> list[dict[str, Any]]:
        """Each of `tools` as a dict."""
        return [{"name": entry} if isinstance(entry, str) else entry for entry in self.tools]

    @property
    def per_episode(self) -> bool:
        """Whether each episode has tool objects of its own."""
        return self.instances != "process"

    @property
    def readable(self) -> tuple[Path, ...]:
        """Folders that document tools may read from."""
        return tuple(Path(folder).expanduser() for folder in self.folders)

    @field_validator("tools")
    @classmethod
    def _named(cls, value: list[str | dict[str, Any]]) -> list[str | dict[str, Any]]:
        for number, entry in enumerate(value):
            named = {"name": entry} if isinstance(entry, str) else entry
            if "mcpServers" in named:
                if not isinstance(named["mcpServers"], dict) or len(named) > 1:
                    raise ValueError(f"entry {number}: mcpServers holds servers by name, and nothing stands beside it")
            elif not isinstance(named.get("name"), str) or not named["name"].strip():
                raise ValueError(f"entry {number} has no `name`, and no `mcpServers`")
            elif not isinstance(named.get("as", ""), str):
                raise ValueError(f"entry {number}: `as` isn't a name")
        return value

    def check_files(self) -> None:
        """Raises ConfigError for a .py file or a folder that isn't there, without the library, and for a built-in tool
        that lacks what it needs."""
        from toolrl_plugin_qwen_agent.library import missing, require

        own = [entry for entry in self.entries if "mcpServers" not in entry]
        for source in [*(entry["name"].rpartition(":")[0] for entry in own), *self.imports]:
            if source.endswith(".py") and not Path(source).expanduser().is_file():
                raise ConfigError(f"there is no Python file {source!r}")
        for folder in self.folders:
            if not Path(folder).expanduser().is_dir():
                raise ConfigError(f"there is no folder {folder!r}", hint="It is named under `folders`.")
        if own:
            require(None)
        for entry in own if not self.imports else ():  # A file may register another tool under a built-in's name.
            if lack := missing(entry["name"], entry):
                raise ConfigError(f"the built-in tool {entry['name']!r} lacks {lack}")
