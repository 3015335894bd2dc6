"""`toolrl openenv show URL`: what an OpenEnv server offers."""

from __future__ import annotations

import argparse
import asyncio
import random
import textwrap

from pydantic import ValidationError

from toolrl.errors import ConfigError
from toolrl.protocols import BuildContext, Command, EpisodeContext
from toolrl.terminal_text import visible
from toolrl.tools.toolset import opening_of
from toolrl.tools.validation import arguments_form
from toolrl.types import Task
from toolrl_plugin_openenv.options import OpenEnvOptions
from toolrl_plugin_openenv.toolset import build


class Show(Command):
    """`toolrl openenv show URL`."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("url", help="where the server is, such as http://127.0.0.1:8000")
        parser.add_argument("--image", action="store_true", help="URL is a Docker image, which is run meanwhile")
        parser.add_argument(
            "--mode", choices=("auto", "tools", "action", "text"), default="auto", help="the option `mode`"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Reset an episode; print its tools and what a model would see first. 0, or raises what the start raises."""
        return asyncio.run(self._run(args, _options(args)))

    async def _run(self, args: argparse.Namespace, options: OpenEnvOptions) -> int:
        toolset = build(options, BuildContext(name="openenv"))
        try:
            await toolset.start()
            task = Task("show", ())
            async with toolset.open(task, EpisodeContext("show#0", task, random.Random(0))) as session:
                specs = session.specs()
                opening = await opening_of(session)
        finally:
            await toolset.stop()
        print("tools:" if specs else "no tools: what the model says is the action")
        for spec in specs:
            print(f"  {spec.name} {arguments_form(spec)}")
            print(textwrap.indent(visible(textwrap.shorten(spec.description, 300, placeholder=" …")), "      "))
        print("first observation:" if opening else "the first observation shows nothing")
        for message in opening:
            print(textwrap.indent(visible(message.content), "  "))
        return 0


def _options(args: argparse.Namespace) -> OpenEnvOptions:
    place = "image" if args.image else "url"
    try:
        return OpenEnvOptions.model_validate({place: args.url, "mode": args.mode, "start_timeout": 15})
    except ValidationError as error:
        raise ConfigError([f"{'.'.join(map(str, it['loc']))}: {it['msg']}" for it in error.errors()]) from None
