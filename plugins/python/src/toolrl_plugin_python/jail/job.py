"""`Cell`: what the keeper knows of one job."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

from toolrl_plugin_python.jail.cgroups import ControlGroup
from toolrl_plugin_python.jail.processes import Process
from toolrl_plugin_python.jail.usage import Usage
from toolrl_plugin_python.jail.walls import JobPlace


@dataclass
class Pausing:
    """How far it is with holding an interpreter still."""

    rounds: int = 0
    forks: int = -1
    """As the first counted them before the last look."""
    clean_at: int | None = None
    """When the last look ended, where it found the interpreter stopped and nothing else."""


@dataclass
class Cell:
    """One job, as the keeper sees it."""

    number: int
    place: JobPlace
    usage: Usage
    group: ControlGroup | None
    founder: int
    note: int
    go: int | None
    first: int | None = None
    heard: bytes = b""
    error: str = ""
    reason: str = ""
    watched: bool = False
    program: Process | None = None
    pausing: Pausing | None = None

    def ready(self) -> None:
        """Say go: this process is the first's parent now."""
        if self.go is not None:
            with suppress(OSError):
                os.write(self.go, b"g")
            self.close_go()

    def close_go(self) -> None:
        if self.go is not None:
            os.close(self.go)
            self.go = None
