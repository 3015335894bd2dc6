"""`toolrl config`: check a config, show its resolved values, or print the schema of configs."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from toolrl.cli.common import add_set_argument
from toolrl.cli.output import print_json, table
from toolrl.errors import ConfigError

if TYPE_CHECKING:
    from toolrl.config.load import LoadedConfig
    from toolrl.plugins.registry import Registry

HELP = "check or show a config, or print the schema of configs"
EXAMPLE = """toolrl config check grpo.yaml --set trainer.steps=50
  toolrl config show grpo.yaml
  toolrl config show grpo.yaml --tools
  toolrl config schema > toolrl.schema.json"""


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser("check", help="find every mistake, without building or starting anything")
    show = actions.add_parser("show", help="print all values, defaults included; variables stay ${NAME}")
    for action in (check, show):
        action.add_argument("config", metavar="CONFIG", help="a config file, or a run's folder")
        add_set_argument(action)
        action.add_argument("--json", action="store_true", help="print JSON")
    show.add_argument(
        "--tools",
        action="store_true",
        help="print each tool's schema as the model gets it instead; starts the tools for it",
    )
    check.add_argument("--strict", action="store_true", help="exit status 1 where there is a note")
    check.add_argument(
        "--import",
        action="store_true",
        dest="load",
        help="import and build tools and rewards too, without starting them, and read the first rows, as a run does "
        "before it loads the model",
    )
    check.add_argument("--data", action="store_true", help="read all rows of the data sets too, and name the bad ones")
    schema = actions.add_parser("schema", help="print the JSON Schema of configs with all installed components")
    schema.add_argument("--json", action="store_true", help="the schema is JSON anyway")


def run(args: argparse.Namespace) -> int:
    return {"check": _check, "show": _show, "schema": _schema}[args.action](args)


def _check(args: argparse.Namespace) -> int:
    from toolrl.cli.common import read
    from toolrl.config.components import sites
    from toolrl.config.remarks import DATA, missing_files, remarks
    from toolrl.early_parts import check_before_load

    loaded, registry = read(args)
    uses: dict[str, list[str]] = {}
    for site in sites(loaded.config.model_dump(by_alias=True)):
        qualified = registry.get(site.kind, site.name).qualified
        if qualified not in uses.setdefault(site.kind, []):
            uses[site.kind].append(qualified)
    found: list[str] = []
    if args.load:
        found = check_before_load(loaded, registry, dict.fromkeys(DATA, False), rows=not args.data)[1]
    found += _read_rows(loaded, registry) if args.data else []
    needs = [f"a run is refused here: {line}" for line in missing_files(loaded.config, registry)]
    said = (f"note: {line}" for line in (*remarks(loaded.config, registry), *found))
    notes = [loaded.hide(note) for note in (*said, *needs)]
    if args.json:
        ok = not (args.strict and notes)
        print_json({"ok": ok, "config": loaded.source, "components": uses, "notes": notes})
        return 0 if ok else 1
    print(f"{loaded.source}: ok")
    print(table([(f"  {kind}", ", ".join(names)) for kind, names in uses.items()]))
    for note in notes:
        print(note)
    return 1 if args.strict and notes else 0


def _read_rows(loaded: LoadedConfig, registry: Registry) -> list[str]:
    """Read every row of every data set; gives the remarks on them. Raises ConfigError that names the bad ones; if
    data.bad_rows is skip, only if a data set has no other."""
    from toolrl.chat.row_remarks import collected, notes
    from toolrl.config.remarks import DATA
    from toolrl.loop.data import CheckedTasks, described
    from toolrl.loop.mixture import parts_of
    from toolrl.preflight import build_datasets, run_directory

    directory = run_directory(loaded.config).absolute()
    problems: list[str] = []
    lines: list[str] = []
    for where in DATA:
        with collected() as found:
            for source in build_datasets(registry, loaded.config, directory, {where: False}).values():
                for part in parts_of(source):
                    if isinstance(part, CheckedTasks) and (bad := part.bad()):
                        problems.append(f"{part.place}: {len(bad)} of {len(part)} rows are bad: {described(bad)}")
        lines += [f"{where}: {line}" for line in notes(found)]
    if problems:
        hint = "`data: {bad_rows: skip}` leaves bad rows out of a run."
        raise ConfigError(problems, where=loaded.source, hint=hint)
    return lines


def _show(args: argparse.Namespace) -> int:
    from toolrl.cli.common import read
    from toolrl.runs.folder import config_text

    loaded, registry = read(args)
    if args.tools:
        return _show_tools(loaded, registry, as_json=args.json)
    if args.json:
        print_json(loaded.resolved)
    else:
        print(config_text(loaded.resolved), end="")
    return 0


def _show_tools(loaded: LoadedConfig, registry: Registry, *, as_json: bool) -> int:
    from toolrl.cli.tool_schemas import tool_schemas

    schemas = json.loads(loaded.hide(json.dumps(tool_schemas(loaded, registry))))
    if as_json:
        print_json(schemas)
        return 0
    for name, tools in schemas.items():
        print(f"environments.{name}: {len(tools) or 'no'} tool{'' if len(tools) == 1 else 's'}")
        for tool in tools:
            print(json.dumps(tool, indent=2, ensure_ascii=False))
    return 0


def _schema(args: argparse.Namespace) -> int:
    from toolrl.config.schema import config_schema
    from toolrl.plugins.registry import load_registry

    schema, problems = config_schema(load_registry())
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    print(json.dumps(schema, indent=2, ensure_ascii=False))
    return 0
