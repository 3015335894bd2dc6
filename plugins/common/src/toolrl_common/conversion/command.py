"""The command `toolrl <system> convert`: its arguments, and its report of what a toolrl config can't express."""

from __future__ import annotations

import argparse
import textwrap
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from toolrl.cli.output import print_json
from toolrl.config.load import check_config
from toolrl.errors import ConfigError
from toolrl.protocols import Command
from toolrl.runs.folder import config_text
from toolrl_common.conversion.settings import Conversion

_WIDTH = 110


class ConvertCommand(Command):
    """The command; a subclass reads and converts configs. See the module."""

    system: ClassVar[str]
    """The plugin's name."""
    config_help: ClassVar[str]
    overrides_help: ClassVar[str]

    @abstractmethod
    def convert(self, config: str, overrides: Sequence[str]) -> tuple[dict[str, Any], Conversion]:
        """A toolrl config from a file of the other system, and what isn't in it. Raises ToolrlError."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("config", help=self.config_help)
        parser.add_argument("overrides", nargs="*", help=self.overrides_help)
        parser.add_argument("-o", "--out", help="the file to write (default: the config's name with .toolrl.yaml)")
        parser.add_argument("--force", action="store_true", help="write over a file that is there")
        parser.add_argument("--json", action="store_true", help="print what was done as JSON")
        # Overrides may also follow options: `convert CONFIG --out FILE a.b=c`.
        parser.parse_args = parser.parse_intermixed_args  # type: ignore[method-assign]

    def run(self, args: argparse.Namespace) -> int:
        """Write the config and print what isn't in it. 1 where `toolrl config check` would reject it."""
        out = Path(args.out or f"{Path(args.config).stem}.toolrl.yaml")
        if out.exists() and not args.force:
            raise ConfigError(f"{str(out)!r} exists already", hint="Give another name by --out, or --force.")
        tree, conversion = self.convert(args.config, args.overrides)
        if "tensorboard" in tree.get("observers", ()):
            conversion.remark("observers: `tensorboard` needs its package: pip install 'toolrl[tensorboard]'")
        problems: list[str] = []
        try:
            check_config(tree, source=str(out))
        except ConfigError as error:
            problems = error.problems
        lines = [f"From {args.config} by `toolrl {self.system} convert`."]
        learned, rest = _lost(conversion)
        lines += [f"not carried over, though it changes what is learned: {line}" for line in learned]
        lines += [f"not carried over: {line}" for line in rest]
        header = "".join(f"# {' '.join(line.split())}\n" for line in lines)
        try:
            out.write_text(header + config_text(tree), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{str(out)!r} can't be written: {error.strerror}") from None
        if args.json:
            facts = {"lost": conversion.lost, "learned": conversion.learned, "remarks": conversion.remarks}
            print_json({"written": str(out), **facts, "problems": problems})
        else:
            _print(out, conversion, problems)
        return 1 if problems else 0


def _print(out: Path, conversion: Conversion, problems: Sequence[str]) -> None:
    print(f"wrote {out}")
    learned, rest = _lost(conversion)
    for heading, lines in (
        ("Not carried over, though it changes what is learned:", learned),
        ("Not quite the same:", conversion.remarks),
        ("Not carried over:", rest),
        ("To be mended by hand before it runs:", problems),
    ):
        if lines:
            print(f"\n{heading}")
        for line in lines:
            print(textwrap.fill(line, _WIDTH, initial_indent="  ", subsequent_indent="    "))


def _lost(conversion: Conversion) -> tuple[list[str], list[str]]:
    """Write a line for each lost setting: those that change what is learned, and the others."""
    learned = dict.fromkeys(conversion.learned)
    lines = {key: _with_note(key, note) for key, note in conversion.lost.items()}
    return [lines[key] for key in learned], [line for key, line in lines.items() if key not in learned]


def _with_note(key: str, note: str) -> str:
    return f"{key}: {note}" if note else key
