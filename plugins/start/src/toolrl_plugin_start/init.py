"""`toolrl init`: writes a first config that runs, from the user's model, data and tools."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from toolrl.cli.common import at_least_one
from toolrl.cli.main import run_command
from toolrl.cli.output import UsageError, print_error
from toolrl.config.components import check_options
from toolrl.config.load import load_config
from toolrl.config.remarks import missing_files
from toolrl.errors import PluginError, ToolrlError
from toolrl.plugins.registry import RegisteredComponent, Registry, load_registry
from toolrl.protocols import Command
from toolrl.runs.files import write_atomic
from toolrl_plugin_start import hardware
from toolrl_plugin_start.data_columns import Columns, look
from toolrl_plugin_start.settings import Section, Wanted, check_room, data_set, sections, text

SCHEMA = "toolrl.schema.json"
HEAD = f"""\
# yaml-language-server: $schema={SCHEMA}
# Written by `toolrl init`. `toolrl config check` finds mistakes, `toolrl train` trains. An editor that reads the line
# above completes and explains every field (`toolrl config schema > {SCHEMA}` after plugins were added)."""


_T = TypeVar("_T")


class InitCommand(Command):
    """The command."""

    example = """toolrl init
  toolrl init --model Qwen/Qwen3-0.6B --data train.jsonl --tool calculator --tool tools.py:roll --yes"""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add arguments."""
        parser.add_argument("--model", help="a folder, owner/name of the Hugging Face Hub, or a run's folder")
        parser.add_argument("--data", metavar="FILE", help="tasks to train on: JSON Lines, JSON, parquet or CSV")
        parser.add_argument("--eval", metavar="FILE", help="tasks to evaluate on, with the same columns")
        parser.add_argument("--question", metavar="COLUMN", help="the column of the question (default: found)")
        parser.add_argument("--answer", metavar="COLUMN", help="the column of the answer (default: found)")
        parser.add_argument(
            "--tool",
            action="append",
            metavar="TOOL",
            help="an installed tool, or Python of your own as file.py:name; may be repeated",
        )
        parser.add_argument(
            "--reward",
            metavar="REWARD",
            help="an installed reward, or Python of your own as file.py:name (default: one that fits the answers)",
        )
        parser.add_argument("--steps", type=at_least_one, help="training steps (default: 100 on a GPU, 10 on a CPU)")
        parser.add_argument(
            "--gpu", metavar="GPU[:N]", help="choose sizes for this GPU, as `toolrl plan --gpu` (default: what is here)"
        )
        parser.add_argument("--output", type=Path, metavar="FILE", help="the config (default grpo.yaml)")
        parser.add_argument("--yes", action="store_true", help="ask nothing: take the defaults of what isn't given")

    def run(self, args: argparse.Namespace) -> int:
        """Ask, write, check."""
        ask = _Questions(asks=not args.yes and sys.stdin.isatty() and sys.stdout.isatty())
        registry = load_registry()
        wanted, output = _wanted(args, ask, registry)
        parts = sections(wanted)
        output.parent.mkdir(parents=True, exist_ok=True)
        _write_schema(output.with_name(SCHEMA), registry)
        write_atomic(output, text(parts, head=HEAD))
        if wanted.on_gpu and _fit(parts, output, args.gpu):
            write_atomic(output, text(parts, head=HEAD))
        print(f"wrote {output}")
        check = {"action": "check", "config": str(output), "overrides": [], "strict": False, "load": True, "data": True}
        status = run_command("config", **check, json=False)
        quoted = shlex.quote(str(output))
        refused = status == 0 and any(missing_files(load_config(str(output), registry=registry).config, registry))
        if refused:
            print(f"\nA run is refused here, see above. Where that isn't so: toolrl train {quoted}")
        elif status == 0:
            print(
                f"\nnext: toolrl rollout {quoted} --tasks 2 --set run.name=look    # a few episodes, without training"
            )
            print(f"      toolrl train {quoted}")
        else:
            print(f"Mend that, then: toolrl config check {quoted} --import --data", file=sys.stderr)
        return status


class _Questions:
    """Asks on the terminal, or takes defaults where there is none."""

    def __init__(self, *, asks: bool) -> None:
        self.asks = asks

    def text(self, label: str, given: str | None, option: str, default: str | None = None) -> str:
        """What was given, else the answer, else the default. Raises UsageError where there is none of them."""
        if given:
            return given
        while self.asks:
            shown = f" [{default}]" if default else ""
            try:
                answer = input(f"{label}{shown}: ").strip()
            except EOFError:
                break
            if answer or default is not None:
                return answer or str(default)
        if default is None:
            raise UsageError(
                f"{option} is missing",
                hint="`toolrl init` asks on a terminal. Or: toolrl init --model Qwen/Qwen3-0.6B --data train.jsonl",
            )
        return default

    def until(
        self, check: Callable[[str], _T], label: str, given: str | None, option: str, default: str | None = None
    ) -> tuple[str, _T]:
        """The text as `text` gives it, and what `check` makes of it. On a terminal it asks again where the check raises
        ToolrlError, so that a misspelt answer doesn't lose those before it."""
        while True:
            answer = self.text(label, given, option, default)
            try:
                return answer, check(answer)
            except ToolrlError as error:
                if not self.asks:
                    raise
                print_error(error)
                given = None

    def place(self, path: Path) -> Path:
        """The file to write, one that isn't there or may be replaced. Raises UsageError where there is none."""
        while path.exists():
            if not self.asks:
                raise UsageError(
                    "the file is there already", where=str(path), hint="Name another one by --output FILE."
                )
            if self.text(f"{path} is there already. Replace it? y/n", None, "--output", "n").lower() in ("y", "yes"):
                break
            free = (path.with_stem(f"{path.stem}-{number}") for number in range(2, 1000))
            path = Path(self.text("Config to write", None, "--output", str(next(it for it in free if not it.exists()))))
        return path


def _wanted(args: argparse.Namespace, ask: _Questions, registry: Registry) -> tuple[Wanted, Path]:
    """All that the config is made of, and where to write it. Raises UsageError, DataError."""
    output = args.output or Path("grpo.yaml")
    if not ask.asks:
        ask.place(output)  # A file that is there already is found before anything is read.
    here = hardware.machine()
    print(f"here: {here.describe()}" if args.gpu is None else f"sizes for {args.gpu}")
    label = "Model: a folder, owner/name of the Hub, or a run"
    path, facts = ask.until(hardware.model, label, args.model, "--model")
    print(f"  {facts.describe()}")
    label = "Data: a file with a task a line"
    data, columns = ask.until(partial(_look, args, facts, registry), label, args.data, "--data")
    _describe(columns)
    label = "Data to evaluate on, empty for none"
    evaluation, _ = ask.until(
        lambda file: look(file, columns.question, columns.answer) if file else None, label, args.eval, "--eval", ""
    )
    tools = _tools(args.tool, ask, registry, facts, columns)
    if args.reward is None and not columns.answer and not ask.asks:
        raise UsageError(
            "the rows have no column that looks like an answer",
            where=data,
            hint="Name it by --answer COLUMN, or a reward that needs none by --reward, such as --reward format.",
        )
    rewards = [it for it in (*columns.rewards, "format") if it in registry.names("rewards")]
    label = f"Reward: {', '.join(_ready(registry, 'rewards'))}, or your own as file.py:name"

    def installed(name: str) -> None:
        if ":" not in name:
            registry.get("rewards", name)

    reward, _ = ask.until(installed, label, args.reward, "--reward", rewards[0])
    about = {"evaluation": evaluation or None, "gpu": args.gpu, "facts": facts, "here": here}
    output = ask.place(output)
    return Wanted(path, data, columns, tools, reward, output.stem, args.steps, **about), output


def _look(args: argparse.Namespace, facts: hardware.Model, registry: Registry, path: str) -> Columns:
    """The columns of the data. Raises UsageError, DataError, PluginError without what reads it."""
    registry.get("datasets", data_set(path))
    columns = look(path, args.question, args.answer)
    check_room(facts, columns, 1)
    return columns


def _describe(columns: Columns) -> None:
    print(f"  {columns.rows} rows; questions in {columns.question!r}, answers in {columns.answer!r}")
    if "context" in columns.fields:
        print(f"  {columns.fields['context']!r} follows the question")
    if "system" in columns.fields:
        print(f"  {columns.fields['system']!r} becomes the system message")
    if columns.unseen:
        print(f"  not shown to the model: {', '.join(columns.unseen)}")


def _tools(
    given: list[str] | None, ask: _Questions, registry: Registry, facts: hardware.Model, columns: Columns
) -> list[str]:
    """Names of tools. Raises PluginError for one that isn't installed, UsageError where there is no room for them."""

    def checked(names: str) -> list[str]:
        tools = [name.strip() for name in names.split(",") if name.strip()]
        for name in tools:
            if ":" not in name:
                registry.get("tools", name)
        check_room(facts, columns, len(tools))
        return tools

    ready = ", ".join(_ready(registry, "tools"))
    label = f"Tools, with commas between: {ready}, or your own as file.py:name; empty for none"
    return ask.until(checked, label, ",".join(given or ()), "--tool", "")[1]


def _ready(registry: Registry, kind: str) -> list[str]:
    """Names of components that work without options."""
    found = [it for it in registry.components(kind) if it.component.short and it.plugin.name != "history"]
    return sorted({it.component.name for it in found if not _needs_options(it)})


def _needs_options(found: RegisteredComponent) -> bool:
    try:
        return bool(check_options(found.component, {})[1])
    except PluginError:
        return True


def _write_schema(path: Path, registry: Registry) -> None:
    """Write the schema; an older one is replaced, and another file of this name is left alone."""
    from toolrl.config.schema import config_schema

    schema, _ = config_schema(registry)
    if path.exists() and schema["title"] not in path.read_text(encoding="utf-8", errors="replace"):
        return
    write_atomic(path, json.dumps(schema, ensure_ascii=False) + "\n")


def _fit(parts: dict[str, Section], output: Path, gpu: str | None) -> bool:
    """Have `toolrl plan` compute the run's memory; write its figures, and the first setting that makes it fit, into the
    sections. False where it can't be planned."""
    words = [sys.executable, "-m", "toolrl", "plan", str(output), "--json", *(["--gpu", gpu] if gpu else [])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        facts = json.loads(done.stdout)
        peak, room, fits = facts["peak_gib"], facts["gpu_gib"], facts["fits"]
    except (ValueError, KeyError):
        parts["model"].comment += " Its memory can't be planned yet: `toolrl plan` says why."
        print("note: the memory can't be planned: `toolrl plan` says why")
        return True
    parts["model"].comment += f" `toolrl plan`: at most {peak} of {room} GiB of a {facts['gpu']}."
    settings = [step for step in facts["advice"] if "ranks" not in step["set"]]
    if fits != "no":
        return True
    if not settings:
        parts["model"].comment += " That is too much: take a smaller model, or more GPUs (`toolrl plan` says how many)."
        return True
    for path, value in settings[0]["set"].items():
        _set(parts, path.split("."), value)
    changed = ", ".join(settings[0]["set"])
    parts["model"].comment += f" As that is too much, {changed} is set: then {settings[0]['peak_gib']} GiB."
    return True


def _set(parts: dict[str, Section], path: list[str], value: Any) -> None:
    section = parts.setdefault(path[0], Section("Set so that the run fits the GPU.", {}))
    node = section.value
    for key in path[1:-1]:
        node = node.setdefault(key, {})
    node[path[-1]] = value
