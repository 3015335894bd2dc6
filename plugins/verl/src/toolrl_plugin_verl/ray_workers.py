"""Lets Ray's workers import the user's files as this process did.

Ray hands a class over as the name of its module. A worker is a process of its own that has neither the folders of
`python_path` nor the stand-ins for verl. So Ray's pickler asks here first how a worker gets a class, a function or a
module.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function that the worker calls, and its arguments."""
_MARK = "_toolrl_plugin_verl"


def reach_workers(reduced: Callable[[Any], Reduced | None]) -> None:
    """Teach Ray's pickler, once. `reduced` gives None for what is pickled as ever. Does nothing while Ray isn't
    imported."""
    pickler = getattr(sys.modules.get("ray.cloudpickle"), "CloudPickler", None)
    usual = getattr(pickler, "reducer_override", None)
    if pickler is None or usual is None or hasattr(usual, _MARK):
        return

    @functools.wraps(usual)
    def reducer_override(self: Any, obj: Any) -> Any:
        found = reduced(obj) if isinstance(obj, type | FunctionType | ModuleType) else None
        return usual(self, obj) if found is None else found

    setattr(reducer_override, _MARK, True)
    pickler.reducer_override = reducer_override
