"""Options of the toolset `qwen_agent`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field, field_validator

from toolrl.config.frame import OldNames
from toolrl.errors import ConfigError


class QwenAgentOptions(BaseModel, extra="forbid", frozen=True):
    """Options of the toolset `qwen_agent`."""

    old_names: ClassVar[OldNames] = {"images": None}

    tools: list[str | dict[str, Any]] = Field(
        min_length=1,
        description="As `function_list` of a Qwen-Agent agent: a registered name, or a dict of `name` and the tool's "
        "own settings. Where a name stands, `module:Class` and `FILE.py:Class` may stand too. The key `as` gives a "
        "tool another name.",
    )
    imports: list[str] = Field(
        default_factory=list,
        description="Modules or .py files that register tools; imported before these are looked up.",
    )
    instances: Literal["episode", "process"] = Field(
        "episode",
        description="`episode`: each episode has tool objects and a scratch folder of its own, and calls of one object "
        "run one after the other. `process`: all episodes share one object a tool, in many threads at once.",
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
            if not isinstance(named.get("name"), str) or not named["name"].strip():
                raise ValueError(f"entry {number} has no `name`")
        return value

    def check_files(self) -> None:
        """Raises ConfigError for a .py file or a folder that isn't there, and without the library."""
        from toolrl_plugin_qwen_agent.library import require

        for source in [*(entry["name"].rpartition(":")[0] for entry in self.entries), *self.imports]:
            if source.endswith(".py") and not Path(source).expanduser().is_file():
                raise ConfigError(f"there is no Python file {source!r}")
        for folder in self.folders:
            if not Path(folder).expanduser().is_dir():
                raise ConfigError(f"there is no folder {folder!r}", hint="It is named under `folders`.")
        require(None)
