"""The library qwen_agent: whether it is there, importing it, and finding the classes that a config names.

It is imported in a thread, never in the main one: there it would put its own handlers on SIGINT and SIGTERM, over those
of the run. Its default workspace, fixed when it is imported, is moved out of the current folder, unless
QWEN_AGENT_DEFAULT_WORKSPACE names one.
"""

from __future__ import annotations

import atexit
import difflib
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
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from toolrl.errors import ConfigError
from toolrl_common.user_classes import TRACEBACK, import_errors, import_module, load_object, run_file

INSTALL = "pip install 'toolrl-plugin-qwen-agent[qwen]'"
RAG = ("charset_normalizer", "jieba", "pdfminer", "pdfplumber", "rank_bm25", "snowballstemmer", "bs4", "docx", "pptx")
"""Modules that qwen_agent's document tools ask for."""
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Needs:
    """What a built-in tool needs to be of any use."""

    modules: tuple[str, ...] = ()
    key: str = ""
    """An environment variable."""
    setting: str = ""
    """A setting beside `name`; where there is a key too, either will do."""
    hint: str = ""


NEEDS = {
    "amap_weather": Needs(("pandas", "openpyxl"), "AMAP_TOKEN", "token", "pip install pandas openpyxl"),
    "retrieval": Needs(RAG, hint="pip install 'toolrl-plugin-qwen-agent[rag]'"),
    "extract_doc_vocabulary": Needs((*RAG, "sklearn"), hint="pip install 'qwen-agent[rag]' scikit-learn"),
    "vector_search": Needs(("langchain", "langchain_community", "faiss"), "DASHSCOPE_API_KEY"),
    "web_extractor": Needs(("bs4",), hint="pip install 'toolrl-plugin-qwen-agent[rag]'"),
    "web_search": Needs(key="SERPER_API_KEY"),
    "image_search": Needs(key="SERPAPI_IMAGE_SEARCH_KEY"),
    "image_gen": Needs(setting="llm_cfg"),
}
"""By registered name."""


def is_installed() -> bool:
    """Whether qwen_agent can be found; imports nothing."""
    return importlib.util.find_spec("qwen_agent") is not None


def require(where: str | None) -> None:
    """Raises ConfigError where qwen_agent isn't installed."""
    if not is_installed():
        raise ConfigError("the library qwen_agent isn't installed", where=where, hint=INSTALL)


def check() -> str:
    """For `toolrl doctor`: what is there, and which built-in tools lack what."""
    if not is_installed():
        return f"qwen_agent isn't installed, so its tools can't be used: {INSTALL}"
    tools = in_thread(load)
    lacks = {name: missing(name, {}) for name in sorted(tools.TOOL_REGISTRY)}
    lacks["code_interpreter"] = _interpreter_lacks(tools)
    ready = ", ".join(name for name, lack in lacks.items() if not lack)
    rest = "; ".join(f"{name} lacks {lack}" for name, lack in lacks.items() if lack)
    return f"qwen-agent {importlib.metadata.version('qwen-agent')}: {ready}" + (f"; {rest}" if rest else "")


def missing(name: str, settings: dict[str, Any]) -> str:
    """What a built-in tool lacks here, in words; empty where there is all of it."""
    needs = NEEDS.get(name, Needs())
    lacks = [module for module in needs.modules if importlib.util.find_spec(module) is None]
    if (needs.key or needs.setting) and not settings.get(needs.setting) and not os.environ.get(needs.key):
        words = {"the environment variable": needs.key, "the setting": needs.setting}
        lacks.append(" or ".join(f"{what} {name}" for what, name in words.items() if name))
    return ", ".join(lacks)


def _interpreter_lacks(tools: ModuleType) -> str:
    """What its own checks report."""
    module = sys.modules[tools.CodeInterpreter.__module__]
    try:
        module._check_docker_availability()
        module._check_host_deps()
    except (RuntimeError, ImportError, AttributeError) as error:
        return f"what it needs ({error})"
    return ""


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
    with _LOCK, import_errors(name, where, lambda _: TRACEBACK):
        return run_file(Path(name)) if name.endswith(".py") else import_module(name)


def find_class(name: str, tools: ModuleType, where: str) -> Any:
    """The class of a registered name, of `module:Class` or of `FILE.py:Class`. Raises ConfigError."""
    if ":" not in name:
        known = tools.TOOL_REGISTRY
        if name in known:
            return known[name]
        near = difflib.get_close_matches(name, known, n=1)
        raise ConfigError(
            f"no tool is registered as {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
            where=where,
            hint=f"Registered: {', '.join(sorted(known))}. A tool of your own: `module:Class`, `FILE.py:Class`, or "
            "name its module under `imports`.",
        )
    with _LOCK:
        found = load_object(name, where)
    if not isinstance(found, type) or not issubclass(found, tools.BaseTool):
        raise ConfigError(f"{name!r} is {found!r:.80}, no subclass of qwen_agent.tools.base.BaseTool", where=where)
    return found
