"""The library qwen_agent: whether it is there, importing it, and finding the classes that a config names.

It is imported in a thread, never in the main one: there it would put its own handlers on SIGINT and SIGTERM, over those
of the run. Its default workspace, fixed when it is imported, is moved out of the current folder, unless
QWEN_AGENT_DEFAULT_WORKSPACE names one.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

from toolrl.errors import ConfigError
from toolrl_common.user_classes import import_errors, import_module, load_object, run_file

INSTALL = "pip install 'toolrl-plugin-qwen-agent[qwen]'"


_LOCK = threading.Lock()


def is_installed() -> bool:
    """Whether qwen_agent can be found; imports nothing."""
    return importlib.util.find_spec("qwen_agent") is not None


def require(where: str | None) -> None:
    """Raises ConfigError where qwen_agent isn't installed."""
    if not is_installed():
        raise ConfigError("the library qwen_agent isn't installed", where=where, hint=INSTALL)


def check() -> str:
    """For `toolrl doctor`: whether the library is there, and which one."""
    if not is_installed():
        return f"qwen_agent isn't installed, so its tools can't be used: {INSTALL}"
    in_thread(load)
    return f"qwen-agent {importlib.metadata.version('qwen-agent')}"


def in_thread(function: Any) -> Any:
    """Call it in a thread and wait for it."""
    with ThreadPoolExecutor(1, "toolrl-qwen-agent") as pool:
        return pool.submit(function).result()


def load() -> ModuleType:
    """The module `qwen_agent.tools`. Raises ConfigError where it can't be imported."""
    with _LOCK:
        if "qwen_agent" not in sys.modules and "QWEN_AGENT_DEFAULT_WORKSPACE" not in os.environ:
            folder = tempfile.mkdtemp(prefix="toolrl-qwen-agent-workspace-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            os.environ["QWEN_AGENT_DEFAULT_WORKSPACE"] = folder
        try:
            if "qwen_agent" not in sys.modules and "QWEN_AGENT_DEBUG" not in os.environ:
                importlib.import_module("qwen_agent.log").logger.setLevel(logging.WARNING)  # Else some lines a call.
            return importlib.import_module("qwen_agent.tools")
        except ImportError as error:
            raise ConfigError(f"qwen_agent can't be imported: {error}", hint=INSTALL) from error


def import_registering(name: str, where: str) -> ModuleType:
    """A module, or a .py file as a module of its own, run once a process. Raises ConfigError."""
    with _LOCK, import_errors(name, where):
        return run_file(Path(name)) if name.endswith(".py") else import_module(name)


def find_class(name: str, tools: ModuleType, where: str) -> Any:
    """The class of a registered name, of `module:Class` or of `FILE.py:Class`. Raises ConfigError."""
    if ":" not in name:
        known = tools.TOOL_REGISTRY
        if name in known:
            return known[name]
        raise ConfigError(
            f"no tool is registered as {name!r}",
            where=where,
            hint=f"Registered: {', '.join(sorted(known))}. A tool of your own: `module:Class`, `FILE.py:Class`, or "
            "name its module under `imports`.",
        )
    with _LOCK:
        found = load_object(name, where)
    if not isinstance(found, type) or not issubclass(found, tools.BaseTool):
        raise ConfigError(f"{name!r} is {found!r:.80}, no subclass of qwen_agent.tools.base.BaseTool", where=where)
    return found
