"""A plugin with everything that a config needs, for commands that read one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

FULL = """
from toolrl import Component, hookimpl

def _one(name, target="thing:Thing", options=None, check=None):
    where = "toolrl_plugin_full."
    return [Component(name, where + target, summary=f"The {name}.", options=options and where + options,
                      check=check and where + check)]

@hookimpl
def toolrl_parsers(): return _one("tags")
@hookimpl
def toolrl_chat_formats(): return _one("roles")
@hookimpl
def toolrl_tools(): return _one("counter", options="thing:Options", check="thing:check")
@hookimpl
def toolrl_engines(): return _one("dice")
@hookimpl
def toolrl_commands(): return _one("count", "command:Count")
"""

THING = """
from pydantic import BaseModel

class Options(BaseModel, extra="forbid"):
    precision: int = 3
    token: str = ""

class Thing:
    def __init__(self, options, context): ...

def check():
    return "counts to three"
"""

COMMAND = '''
from toolrl.errors import ToolError, ToolrlError

class Count:
    """Counts words."""
    def __init__(self, options, context): ...
    def configure(self, parser):
        parser.add_argument("words", nargs="*")
        parser.add_argument("--fail", action="store_true")
        parser.add_argument("--crash", action="store_true")
        parser.add_argument("--interrupt", action="store_true")
        parser.add_argument("--json", action="store_true")
        parser.add_argument("--read")
    def run(self, args):
        if args.read:
            self.use(args, args.read)
        if args.fail:
            raise ToolrlError("the words are gone", where="shelf 3", hint="Look under the table.")
        if args.crash:
            raise ZeroDivisionError("a bug")
        if args.interrupt:
            raise KeyboardInterrupt
        for _ in range(2000 if "many" in args.words else 1):
            print(len(args.words), "words", "." * 100)
        return 4 if "four" in args.words else 0
    def use(self, args, path):
        from toolrl.cli.common import read
        args.config, args.overrides = path, []
        loaded, _ = read(args)
        token = loaded.config.environments["default"].tools[0].options["token"]
        if args.crash:
            raise ZeroDivisionError(f"{token} by nothing")
        raise ToolrlError(f"{token} is refused", where=f"at {token}", hint=f"Not {token}.") from KeyError(token)
'''

CONFIG = """
model: {path: ./tiny}
environments:
  default:
    parser: tags
    chat_format: roles
    tools: [{use: counter, options: {token: "${TOKEN}"}}]
engine: dice
"""


@pytest.fixture
def full_site(troubled_site: Any) -> Any:
    """The site of troubles, and a plugin that a whole config can be written with."""
    troubled_site.add("full", FULL, modules={"thing": THING, "command": COMMAND})
    return troubled_site


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """A config without mistakes, if TOKEN is set."""
    file = tmp_path / "run.yaml"
    file.write_text(CONFIG)
    return file
