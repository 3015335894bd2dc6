"""The folder that vLLM reads a model's config and tokenizer from: at the same path whenever these are the same.

The path is part of the key of vLLM's cache of compiled graphs. With another name at each start vLLM would compile the
model anew each time. So the folder is named after its content, and kept.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

_PREFIX = "toolrl-config-"
_log = logging.getLogger(__name__)


@contextmanager
def config_folder(save: Callable[[Path], None]) -> Iterator[Path]:
    """The folder with the files that `save` writes into the one that it is given, in `$XDG_CACHE_HOME/toolrl` or
    `~/.cache/toolrl`. If that can't be, a warning says so, and it is a temporary folder. Raises what `save` raises."""
    with ExitStack() as stack:
        try:
            folder = _kept(save, _cache())
        except (OSError, RuntimeError) as error:  # Path.home() raises RuntimeError for a user without a home.
            _log.warning("vLLM compiles the model anew at each start, as its config can't be kept: %s", error)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX)))
            save(folder)
        yield folder


def _cache() -> Path:
    """The folder of all kept configs. Raises OSError if others than the user can write there."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    place = (given if given.is_absolute() else Path.home() / ".cache") / "toolrl"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = place.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{place}: other users can write there; expected a folder of your own (chmod 700)")
    return place


def _kept(save: Callable[[Path], None], cache: Path) -> Path:
    """Move the files that `save` writes to the folder that is named after their content. Each is put in its place
    whole, for a run that starts at the same moment. One that was damaged is replaced."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=cache) as name:
        written = Path(name)
        save(written)
        files = {path.relative_to(written): path.read_bytes() for path in sorted(written.rglob("*")) if path.is_file()}
        content = hashlib.sha256()
        for part, data in files.items():
            content.update(f"{part.as_posix()}\0{len(data)}\0".encode() + data)
        kept = cache / f"{_PREFIX}{content.hexdigest()}"
        for part, data in files.items():
            place = kept / part
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A file that another run may be reading stays: on a network's disk it would lose what it has open.
            if not place.is_file() or place.read_bytes() != data:
                (written / part).replace(place)
    return kept
