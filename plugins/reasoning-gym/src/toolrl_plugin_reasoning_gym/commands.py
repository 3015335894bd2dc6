"""`toolrl reasoning-gym list` and `toolrl reasoning-gym data`."""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from toolrl.errors import ConfigError, DataError
from toolrl.protocols import BuildContext, Command
from toolrl.types import Task
from toolrl_plugin_reasoning_gym.dataset import ReasoningGym
from toolrl_plugin_reasoning_gym.options import INSTRUCTION, DataOptions
from toolrl_plugin_reasoning_gym.process import list_generators


class ListCommand(Command):
    """The generators."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add arguments."""
        parser.add_argument("name", nargs="*", help="only generators whose name or category holds one of these")
        parser.add_argument("--json", action="store_true", help="one JSON object a line")

    def run(self, args: argparse.Namespace) -> int:
        """Print them; 1 where none is left."""
        wanted, known = args.name or [""], list_generators()
        found = [item for item in known if any(part in f"{item['category']}/{item['name']}" for part in wanted)]
        for item in found:
            print(json.dumps(item) if args.json else _described(item))
        return 0 if found else 1


def _described(item: dict[str, Any]) -> str:
    settings = ", ".join(f"{key}: {json.dumps(value)}" for key, value in item["config"].items())
    return f"{item['name']} ({item['category']})\n    {settings}"


class DataCommand(Command):
    """Rows of a data set as a file."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add arguments."""
        parser.add_argument("target", type=Path, metavar="OUT.jsonl", help="the file to write")
        parser.add_argument("generator", nargs="+", help="a generator's name, or name=weight")
        parser.add_argument("--size", type=int, default=1000, help="how many tasks (1000)")
        parser.add_argument("--seed", type=int, default=0, help="decides the tasks (0)")
        parser.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="GENERATOR.KEY=VALUE",
            help="a setting of a generator, its value as YAML; may be repeated",
        )
        parser.add_argument("--instruction", default=INSTRUCTION, help="put after each question; empty for none")
        parser.add_argument("--overwrite", action="store_true", help="replace a file that is there")

    def run(self, args: argparse.Namespace) -> int:
        """Write the rows; returns the exit status."""
        if args.target.exists() and not args.overwrite:
            raise DataError(f"{args.target} is there already", hint="Give --overwrite to replace it, or another name.")
        source = ReasoningGym(read_options(args), BuildContext("reasoning_gym"))
        args.target.parent.mkdir(parents=True, exist_ok=True)
        part = args.target.with_name(f".{args.target.name}.part")
        try:
            with part.open("w", encoding="utf-8") as file:
                for index in range(len(source)):
                    file.write(json.dumps(row_of(source[index])) + "\n")
            part.replace(args.target)
        finally:
            with contextlib.suppress(OSError):  # The first error matters.
                part.unlink()
        print(f"{args.target}: {len(source)} tasks")
        return 0


def read_options(args: argparse.Namespace) -> DataOptions:
    """The data set's options from the arguments. Raises ConfigError."""
    specs: dict[str, dict[str, Any]] = {}
    for given in args.generator:
        name, equals, weight = given.partition("=")
        if name in specs:
            raise ConfigError(f"the generator {name!r} is given twice", hint="Give it once, with a weight.")
        specs[name] = {"name": name, "config": {}, **({"weight": weight} if equals else {})}
    for given in args.set:
        path, equals, text = given.partition("=")
        name, dot, key = path.partition(".")
        if not equals or not dot or name not in specs:
            raise ConfigError(
                f"--set {given!r}: expected GENERATOR.KEY=VALUE with one of {', '.join(specs)}",
                hint=f"For example --set {next(iter(specs))}.{key or 'key'}=3",
            )
        try:
            specs[name]["config"][key] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {given!r}: the value isn't YAML: {error}") from None
    options = {"generators": list(specs.values()), "size": args.size, "seed": args.seed}
    try:
        return DataOptions.model_validate({**options, "instruction": args.instruction})
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise ConfigError(problems) from None


def row_of(task: Task) -> dict[str, Any]:
    """A task as a row of the data set `jsonl`."""
    row: dict[str, Any] = {
        "id": task.id,
        "messages": [{"role": message.role, "content": message.content} for message in task.messages],
        "answer": task.answer,
    }
    return {**row, **task.extra}
