"""Settings of a keeper: how to isolate, once, and the limits of each job. Both come as JSON from the run."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field

NAMESPACES, LANDLOCK, NONE = "namespaces", "landlock", "none"


@dataclass(frozen=True, slots=True)
class Settings:
    """How everything that this keeper starts is isolated."""

    readable: tuple[str, ...]
    """Paths that may be read and executed, with all below them."""
    search_path: tuple[str, ...]
    """`sys.path` of interpreters, after the scratch folder."""
    mode: str = NONE
    """`namespaces`, `landlock` or `none`."""
    own_user: bool = False
    """With `landlock`: run as a user of its own, which only root can."""
    hidden: tuple[str, ...] = ()
    """Folders below the readable ones whose contents may not be read, but for what `readable` names in them."""
    scratch_base: str = field(default_factory=tempfile.gettempdir)
    """With `landlock` and `none`: the folder in which scratch folders are made."""
    preload: tuple[str, ...] = ()
    """Modules that are imported before interpreters are forked."""
    packages: tuple[str, ...] = ()
    """Named to the model as importable besides the standard library."""


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What one job may use. 0 is no limit."""

    cpu_seconds: float = 0
    memory_mb: int = 0
    processes: int = 0
    file_mb: int = 0
    scratch_mb: int = 0
    interpreter: bool = True
    """True for an interpreter, which gets a MemoryError; a program's address space is left alone."""
    renewed: bool = False
    """True for an interpreter that runs several cells: processor time counts for each of them anew, and it is a single
    process, so that it can be held still between them."""
