"""`toolrl reasoning-gym list`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from toolrl.protocols import Command
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
