"""`toolrl mcp tools` and `toolrl mcp call`: what the servers of a file have, and what a tool of theirs answers."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from toolrl.errors import ConfigError, ToolError
from toolrl.protocols import BuildContext, Command, EpisodeContext
from toolrl.terminal_text import visible
from toolrl.tools.validation import arguments_form
from toolrl.types import Task, ToolCall
from toolrl_plugin_mcp.options import McpOptions
from toolrl_plugin_mcp.toolset import build


class Tools(Command):
    """`toolrl mcp tools FILE`."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        _add_file(parser)
        parser.add_argument("--json", action="store_true", help="print the tools as JSON, in the form that models get")

    def run(self, args: argparse.Namespace) -> int:
        """Print each tool's name, arguments and description. 0, or raises what the start raises."""
        return asyncio.run(self._run(args))

    async def _run(self, args: argparse.Namespace) -> int:
        async with _session(args.file) as session:
            specs = session.specs()
        if args.json:
            print(json.dumps([spec.as_function() for spec in specs], ensure_ascii=False, indent=2))
            return 0
        for spec in specs:
            print(f"{spec.name} {arguments_form(spec)}")
            print(textwrap.indent(visible(textwrap.shorten(spec.description, 300, placeholder=" …")), "    "))
        return 0


class Call(Command):
    """`toolrl mcp call FILE NAME ARGUMENTS`."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        _add_file(parser)
        parser.add_argument("name", help="the tool: `server-tool`, or its own name where only one server has it")
        parser.add_argument("arguments", nargs="?", default="{}", help="its arguments as a JSON object")

    def run(self, args: argparse.Namespace) -> int:
        """Print the answer; 1 where it is an error."""
        try:
            arguments = json.loads(args.arguments)
        except ValueError as error:
            raise ConfigError(f"the arguments aren't JSON: {error}", where=args.arguments) from None
        if not isinstance(arguments, dict):
            raise ConfigError("the arguments aren't a JSON object", where=args.arguments)
        return asyncio.run(self._run(args, arguments))

    async def _run(self, args: argparse.Namespace, arguments: dict[str, Any]) -> int:
        async with _session(args.file) as session:
            try:
                print(visible((await session.call(ToolCall(args.name, arguments))).text))
            except ToolError as error:
                print(visible(error.message))
                return 1
        return 0


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="JSON with `mcpServers`, or a .pydata file")


@asynccontextmanager
async def _session(path: Path) -> AsyncIterator[Any]:
    """The servers of a file, started, and an episode with them."""
    toolset = build(McpOptions(config=path), BuildContext(name="mcp"))
    await toolset.start()
    try:
        task = Task("mcp", ())
        async with toolset.open(task, EpisodeContext("mcp#0", task, random.Random(0))) as session:
            yield session
    finally:
        await toolset.stop()
