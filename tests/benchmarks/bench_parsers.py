"""What parsing a turn costs, against TRL's parser on the same texts.

    python tests/benchmarks/bench_parsers.py               # prints a table
    python tests/benchmarks/bench_parsers.py --json OUT.json

TRL's parser is `tokenizer.parse_response` with the response template that `trl.chat_template_utils.add_response_schema`
sets for Qwen3's chat template; it gets the text, as ours does, so that no decoding is timed. Each parser is timed in
rounds that change their order, and what is printed is the median of all rounds, so that neither gains from a quiet
moment or from going second. First both are asked for the calls of each text, and where they differ it is said.

The last rows are a megabyte of each of some hostile patterns, which only ours is given: a limit of half a second holds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolrl.types import ToolCall
from toolrl_plugin_qwen.hermes import HermesParser
from toolrl_plugin_qwen.qwen3_coder import Qwen3CoderParser

LIMIT_SECONDS = 0.5
_ARGUMENTS = '{"city": "Oslo", "country": "Norway", "units": "celsius", "days": 3, "detailed": true, "language": "en"}'
_CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {_ARGUMENTS}}}\n</tool_call>'
_PROSE = "I need the weather in Oslo before I can answer, so I look it up with the tool that was given to me here."
TEXTS = {
    "one call": f"{_PROSE}\n{_CALL}",
    "thinking and a call": f"<think>\n{_PROSE * 20}\n</think>\n\n{_CALL}",
    "five calls": "\n".join([_CALL] * 5),
    "no call": _PROSE * 3,
    "a bad call between two": f'{_CALL}\n<tool_call>\n{{"name": "f", "arguments": {{"a": }}}}\n</tool_call>\n{_CALL}',
}
HOSTILE = {
    "opening tags": "<tool_call>",
    "closing tags": "</tool_call>",
    "opening tags in strings": '<tool_call>{"a":"',
    "backslashes": "\\",
    "open lists": "[",
    "thinking": "<think><tool_call>",
    "function tags": "\n<tool_call>\n<function=f>\n<parameter=a>\n",
    "function ends": "</function>",
}


def trl_parser() -> Callable[[str], Any]:
    """TRL's parser for Qwen3, on a tokenizer without a vocabulary: only its templates matter here."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl.chat_template_utils import add_response_schema, qwen3_chat_template

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<unk>": 0, "<|im_end|>": 1}, unk_token="<unk>")),
        eos_token="<|im_end|>",
    )
    tokenizer.chat_template = qwen3_chat_template
    add_response_schema(tokenizer)

    def parse(text: str) -> Any:
        try:
            return tokenizer.parse_response(text, prefix="")
        except (ValueError, TypeError):
            return {"content": text}  # what trl.chat_template_utils.parse_response falls back to

    return parse


def medians(functions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Microseconds a call of each, the order turned round each time."""
    repeats = {name: max(3, round(0.01 / max(_once(function, 3), 1e-6))) for name, function in functions.items()}
    seen: dict[str, list[float]] = {name: [] for name in functions}
    order = list(functions)
    for _ in range(rounds):
        for name in order:
            seen[name].append(_once(functions[name], repeats[name]) * 1e6)
        order.reverse()
    return {name: statistics.median(times) for name, times in seen.items()}


def _once(function: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - start) / repeats


def compare(rounds: int) -> list[dict[str, Any]]:
    """A row for each text."""
    ours, theirs = HermesParser(), trl_parser()
    rows = []
    for name, text in TEXTS.items():
        turn = ours.parse(text, tools=())
        their_calls = [call["function"] for call in theirs(text).get("tool_calls") or []]
        our_calls = [{"name": i.name, "arguments": dict(i.arguments)} for i in turn.items if isinstance(i, ToolCall)]
        times = medians(
            {"toolrl": lambda text=text: ours.parse(text, tools=()), "trl": lambda text=text: theirs(text)}, rounds
        )
        rows.append(
            {
                "text": name,
                "characters": len(text),
                "toolrl_us": times["toolrl"],
                "trl_us": times["trl"],
                "ratio": times["trl"] / times["toolrl"],
                "calls": len(our_calls),
                "errors": len(turn.items) - len(our_calls),
                "trl_calls": len(their_calls),
            }
        )
    return rows


def hostile() -> list[dict[str, Any]]:
    """A row for each parser and pattern: the longest of three runs on a megabyte."""
    rows = []
    for pattern, unit in HOSTILE.items():
        for name, parser in (("hermes", HermesParser()), ("qwen3_coder", Qwen3CoderParser())):
            opening = '<tool_call>{"a": ' if name == "hermes" else "<tool_call>\n<function=f>\n<parameter=a>\n"
            texts = [start + unit * (1_000_000 // len(unit)) for start in ("", opening)]
            seconds = max(_once(lambda text=text, parser=parser: parser.parse(text, tools=()), 3) for text in texts)
            rows.append({"pattern": pattern, "parser": name, "seconds": seconds})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", metavar="OUT", type=Path, help="also write the figures to a file")
    args = parser.parse_args()
    texts, patterns = compare(args.rounds), hostile()
    print(f"{'text':24}{'characters':>11}{'toolrl µs':>11}{'TRL µs':>9}{'ratio':>7}   calls (TRL)  errors")
    for row in texts:
        times = f"{row['toolrl_us']:>11.1f}{row['trl_us']:>9.1f}{row['ratio']:>7.1f}"
        print(f"{row['text']:24}{row['characters']:>11}{times}{row['calls']:>8} ({row['trl_calls']}){row['errors']:>8}")
    print(f"\n{'a megabyte of':24}{'parser':>13}{'seconds':>9}")
    for row in patterns:
        print(f"{row['pattern']:24}{row['parser']:>13}{row['seconds']:>9.3f}")
    if args.json:
        args.json.write_text(json.dumps({"texts": texts, "hostile": patterns}, indent=2) + "\n", encoding="utf-8")
    slow = [row for row in patterns if row["seconds"] > LIMIT_SECONDS]
    if slow:
        print(f"above {LIMIT_SECONDS} s: {slow}", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
