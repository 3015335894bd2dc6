"""`toolrl parse`: shows what a parser reads from a text, or from a file of cases.

Of a file those cases are run that name this parser or none; `hermes` also runs those of `answer`, and `answer` as the
parser's name runs those alone. With `--json` each case gives one line, in the order of the file:

    {"id": …, "items": […], "content": …, "answer": …, "seconds": …}

An item is `{"name": …, "arguments": …}` for a call, `{"error": KIND, "name": …}` for an error, whose name is there only
where it could be read. `id` is the case's own, or the number of its line; `answer` is null where there is none. A line
of the file that is no case gives `{"id": …, "error": …}` and the exit status 1, and those after it are run. All other
output goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolrl.cli.output import error_facts, print_error
from toolrl.errors import ConfigError, DataError, ToolrlError
from toolrl.terminal_text import visible

if TYPE_CHECKING:
    from toolrl.parsing.cases import Case, CaseOutcome
    from toolrl.parsing.flags import EndFlags
    from toolrl.protocols import ToolParser

HELP = "show what a parser makes of a text"
EXAMPLE = """toolrl parse --parser hermes '<tool_call>{"name": "now", "arguments": {}}</tool_call>'"""

_CASES = "parse the cases of a JSON Lines file: those that name this parser or none"
_ANSWER = "answer"
"""Cases of the end flag `answer` name this as their parser and run under `hermes`."""


def configure(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("text", nargs="?", metavar="TEXT", help="the text of a turn; - reads it from standard input")
    source.add_argument("--cases", metavar="FILE", help=_CASES)
    parser.add_argument("--parser", required=True, metavar="NAME", help="a parser's name, or plugin/name")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the parser")
    parser.add_argument("--tools", metavar="FILE", help="a JSON list of the tools that the text may call")
    parser.add_argument("--end-flag", action="append", metavar="FLAG", help="what ends an episode (default: answer)")
    parser.add_argument("--stopped-by", metavar="STRING", help="the stop string that ended the text")
    parser.add_argument("--prefilled-thinking", action="store_true", help="the text begins inside a thinking block")
    parser.add_argument("--check", action="store_true", help="with --cases: compare with what the cases expect")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each text")


def run(args: argparse.Namespace) -> int:
    try:
        return _run(args)
    except ToolrlError as error:
        if not (args.cases and args.json):
            raise
        print_error(error)  # a line of standard output is a case's
        return 1


def _run(args: argparse.Namespace) -> int:
    from toolrl.parsing.flags import EndFlags

    only_flag = args.cases and args.parser == _ANSWER
    parser = _build("hermes" if only_flag else args.parser, args.option)
    flags = EndFlags(args.end_flag or [_ANSWER], where="--end-flag")
    if args.cases:
        return _run_cases(args, parser, flags)
    return _run_text(args, parser, flags)


def _run_text(args: argparse.Namespace, parser: ToolParser, flags: EndFlags) -> int:
    from toolrl.parsing.cases import Case, run_case
    from toolrl.types import ToolSpec

    text = sys.stdin.read() if args.text == "-" else args.text
    tools = tuple(ToolSpec.from_function(tool) for tool in _read_tools(args.tools)) if args.tools else ()
    case = Case("", text, None, tools, args.stopped_by, args.prefilled_thinking)
    outcome = run_case(parser, flags, case)
    _show(json.dumps(outcome.facts()) if args.json else describe(outcome))
    return 0


def _run_cases(args: argparse.Namespace, parser: ToolParser, flags: EndFlags) -> int:
    """Run each case of this parser and each that names none. Exit status 1 where `--check` finds a fault, or a line is
    no case."""
    from toolrl.parsing.cases import differences, read_cases, run_case

    name = args.parser.rpartition("/")[2]
    mine = {None, name, args.parser} | ({_ANSWER} if name == "hermes" else set())
    counts = {"run": 0, "skipped": 0, "wrong": 0, "debatable": 0, "bad": 0}
    for case in read_cases(args.cases):
        if case.parser not in mine:
            counts["skipped"] += 1
            continue
        name_of_case = case.wanted.get("id", case.id)
        if case.problem is not None:
            counts["bad"] += 1
            if args.json:
                print(json.dumps({"id": name_of_case, "error": error_facts(case.problem)}))
            print_error(case.problem)
            continue
        outcome = run_case(parser, flags, case)
        counts["run"] += 1
        if args.json:
            print(json.dumps({"id": name_of_case, **outcome.facts()}))
        elif not args.check:
            _show(f"{case.id}\n{describe(outcome)}\n")
        if args.check and (found := differences(case, outcome)):
            counts["debatable" if case.wanted.get("debatable") else "wrong"] += 1
            _report(case, found)
    summary = f"{counts['run']} cases run, {counts['skipped']} of other parsers skipped"
    if args.check:
        summary += f", {counts['wrong']} wrong, {counts['debatable']} debatable ones different"
    if counts["bad"]:
        summary += f", lines that are no case: {counts['bad']}"
    print(summary, file=sys.stderr)
    if not counts["run"] and not counts["bad"]:
        raise DataError(f"no case is for the parser {args.parser!r}", where=args.cases)
    return 1 if counts["wrong"] or counts["bad"] else 0


def _show(text: str) -> None:
    """Print what may hold halves of surrogate pairs, which no stream can take."""
    print(visible(text))


def _report(case: Case, found: list[str]) -> None:
    """Print the differences on standard error."""
    debatable = case.wanted.get("debatable")
    alternatives = "; ".join(map(str, case.wanted.get("alternatives") or ()))
    remark = f" (debatable; also possible: {alternatives})" if debatable else ""
    print(f"{case.id}{remark}", *(visible(f"  {line}") for line in found), sep="\n", file=sys.stderr)


def describe(outcome: CaseOutcome) -> str:
    """The parsed turn as text for people."""
    from toolrl.types import ToolCall

    parsed = outcome.parsed
    lines = []
    for item in parsed.items:
        place = f"[{item.span[0]}:{item.span[1]}]"
        if isinstance(item, ToolCall):
            arguments = json.dumps(dict(item.arguments), ensure_ascii=False)
            lines.append(f"call   {place} {item.name} {arguments}{' (recovered)' if item.recovered else ''}")
        else:
            message = item.message.replace("\n", "\n       ")
            lines.append(f"error  {place} {item.kind}{f' ({item.name})' if item.name else ''}: {message}")
    if parsed.reasoning is not None:
        lines.append(f"reasoning {parsed.reasoning!r}")
    lines.append(f"content   {parsed.content!r}")
    if parsed.answer is not None:
        lines.append(f"answer    {parsed.answer!r}")
    lines.append(f"status    {parsed.status}, read in {outcome.seconds * 1e6:.0f} µs")
    return "\n".join(lines)


def _build(name: str, options: list[str]) -> ToolParser:
    """The parser with its options. Raises PluginError or ConfigError."""
    from toolrl.building import build_component
    from toolrl.config.frame import ComponentUse
    from toolrl.plugins.registry import load_registry
    from toolrl.protocols import BuildContext

    use = ComponentUse(use=name, options=_options(options))
    parser: ToolParser = build_component(load_registry(), "parsers", use, BuildContext(name=name), "")
    return parser


def _options(pairs: list[str]) -> dict[str, Any]:
    import yaml

    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise ConfigError(f"got {pair!r}", where="--option", hint="Write NAME=VALUE, for example repair=true.")
        try:
            options[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"the value of {name} is no YAML: {error}", where="--option") from error
    return options


def _read_tools(path: str) -> list[dict[str, Any]]:
    try:
        tools = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"the tools can't be read: {error}", where=path) from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise DataError("expected a list of tools", where=path, hint='For example [{"name": "now", "parameters": {}}].')
    return tools
