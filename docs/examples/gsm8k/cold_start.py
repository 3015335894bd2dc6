"""Demonstrations for a cold start on GSM8K, made from the calculations that its solutions mark as `<<48/2=24>>`.

    python docs/examples/gsm8k/cold_start.py data/gsm8k runs/calculator.jsonl [--tool python] [--limit 2000]

With the tool `calculator` each marked calculation is a call in the place where it stands; `inline` is the same, for an
environment whose calls and results stand inside the text (parser `tir`). With `python` the whole solution is one
program, a variable for each calculation, the sentences around them as comments. What the tool answers is what it would
answer: expressions are calculated here. A solution is left out where that isn't what it says, or where a calculation
is more than numbers and + - * / ( ). With `no_tools` the solutions are those of `calculator` without calls: a control
should start from a model that has seen as much.

A row's environment is the name of its tool. Rows are in the order of the file; files of two tools may be joined.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from toolrl.builtin.rows import open_rows
from toolrl.errors import ToolrlError
from toolrl_plugin_calculator.evaluate import ExpressionEvaluator
from toolrl_plugin_math.files import find_split
from toolrl_plugin_math.options import Gsm8kDataOptions

MARKED = re.compile(r"<<([^<>]*)=([^<>=]*)>>")
PLAIN = re.compile(r"[\d.+\-*/() ]+\Z")
"""What is calculated alike by every tool."""
NUMBER = re.compile(r"\d+(?:\.\d+)?|\.\d+")
CALCULATION = re.compile(r"\$?\s*[\d.,$%+\-*/x()= ]+\Z")
"""What stands before a mark at the end of a text: the calculation in the author's words."""
TOOLS = ("calculator", "inline", "python", "no_tools")


@dataclass(frozen=True)
class Step:
    """A marked calculation."""

    before: str
    """The text since the calculation before it."""
    expression: str
    result: str
    after: str
    """The rest of its line, with the result at the start."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="the folder with train.jsonl, or the file")
    parser.add_argument("dest", type=Path, help="the .jsonl file to write")
    parser.add_argument("--tool", choices=TOOLS, default="calculator")
    parser.add_argument("--limit", type=int, help="only the first so many problems")
    args = parser.parse_args()
    try:  # All of them before the file is opened: one that is there already isn't lost to a mistake.
        rows = list(demonstrations(args.data, args.tool, args.limit))
    except ToolrlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    args.dest.parent.mkdir(parents=True, exist_ok=True)
    with args.dest.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    print(f"{args.dest}: {len(rows)} demonstrations")
    return 0 if rows else 1


def demonstrations(data: str, tool: str, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """Rows for the data set `jsonl`, one of each problem that can be shown so."""
    options = Gsm8kDataOptions(path=data)
    for file in find_split(options.path, options.split):
        rows = open_rows(file)
        for index in range(min(len(rows), limit or len(rows))):
            question, solution = rows[index]["question"], rows[index]["answer"]
            found = parts(solution)
            if found is None:
                continue
            steps, rest, answer = found
            user = {"role": "user", "content": f"{question}\n\n{options.instruction}"}
            said: list[dict[str, Any]] | None = [{"role": "assistant", "content": MARKED.sub("", solution)}]
            if tool != "no_tools":
                said = python_turns(steps, answer) if tool == "python" else calculator_turns(steps, rest)
            if said is not None:
                yield {"messages": [user, *said], "answer": answer, "environment": tool}


def parts(solution: str) -> tuple[list[Step], str, str] | None:
    """The calculations, the text after the last one, and the answer. None where there are none, or one that no tool
    would answer as it says."""
    steps, end = [], 0
    for found in MARKED.finditer(solution):
        expression, result = found[1].strip(), found[2].strip()
        if not PLAIN.match(expression) or calculated(expression) != value(result):
            return None
        after = solution[found.end() :].partition("\n")[0].partition("<<")[0]
        steps.append(Step(solution[end : found.start()], expression, result, after))
        end = found.end()
    rest = solution[end:]
    answer = rest.rpartition("####")[2].strip().replace(",", "")
    return (steps, rest, answer) if steps and value(answer) is not None else None


def value(text: str) -> Fraction | None:
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return None


def calculated(expression: str) -> Fraction | None:
    """Exactly; None for what can't be."""
    try:
        return Fraction(ExpressionEvaluator()(expression))
    except Exception:  # noqa: BLE001 - whatever can't be calculated is left out
        return None


def call(name: str, **arguments: str) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}}


def calculator_turns(steps: list[Step], rest: str) -> list[dict[str, Any]]:
    """A turn for each calculation, which ends with the call, and what is left of the solution. The number that stands
    behind a mark in the text begins the next turn."""
    turns: list[dict[str, Any]] = []
    for step in steps:
        calls = [call("calculator", expression=step.expression)]
        said = {"role": "assistant", "content": step.before, "tool_calls": calls}
        answer = {"role": "tool", "content": ExpressionEvaluator()(step.expression), "name": "calculator"}
        turns += [said, answer]
    return [*turns, {"role": "assistant", "content": rest}]


def python_turns(steps: list[Step], answer: str) -> list[dict[str, Any]] | None:
    """One program, and the answer. None where the program prints something else."""
    lines: list[str] = []
    names: dict[Fraction, str] = {}
    values: dict[str, Any] = {}
    for number, step in enumerate(steps, start=1):
        words = comment(step)
        expression = NUMBER.sub(lambda found: names.get(Fraction(found[0]), found[0]), step.expression)
        lines += [f"# {words}"] if words else []
        lines.append(f"step_{number} = {expression}")
        try:
            # Numbers, the names above and arithmetic, nothing else: `parts` has seen to it.
            values[f"step_{number}"] = eval(expression, {"__builtins__": {}}, values)
        except (ArithmeticError, SyntaxError, TypeError):
            return None
        names[Fraction(step.result)] = f"step_{number}"
    lines.append(f"print(step_{len(steps)})")
    printed = str(values[f"step_{len(steps)}"])
    if Fraction(printed) != Fraction(answer):
        return None
    return [
        {"role": "assistant", "content": "", "tool_calls": [call("python", code="\n".join(lines))]},
        {"role": "tool", "content": printed, "name": "python"},
        {"role": "assistant", "content": f"#### {answer}"},
    ]


def comment(step: Step) -> str:
    """The sentence around a calculation without the calculation, and without its result."""
    before = CALCULATION.sub("", step.before.rpartition("\n")[2])
    after = re.sub(r"^[\d.,$%]+", "", step.after.strip())
    words = f"{before.strip()} ... {after.strip()}" if before.strip() and after.strip(" .") else before + after
    return words.strip(" .,:;=$")


if __name__ == "__main__":
    sys.exit(main())
