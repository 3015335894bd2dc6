"""The table of model families in docs/howto/model-families.md: what the chat format `template` makes of each template.

    TOOLRL_TOKENIZERS=FOLDER python plugins/chat/tests/families_table.py            # prints it
    TOOLRL_TOKENIZERS=FOLDER python plugins/chat/tests/families_table.py --write    # puts it into the page

FOLDER holds the tokenizers of the table's first half, one folder each; an installed `trl` gives the second half.
Everything is found by trying; what is written here are words.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "support"))
from canonical import BESIDE_CALLS, CALCULATOR, CASES, THINKING, obstacle
from chat_families import NAMES, format_of, tokenizer_of

from toolrl.errors import ChatFormatError
from toolrl.types import Message, ToolCall
from toolrl_plugin_chat.template import TemplateFormat

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "model-families.md"
BEGIN, END = "<!-- begin: made by plugins/chat/tests/families_table.py -->", "<!-- end -->"
COLUMNS = (
    "template", "tools and calls", "calls in a turn", "thinking",
    "rules 1, 2", "rule 3", "not canonical, and why", "parser",
)  # fmt: skip
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
WHY = {
    "refused": "refused by the template",
    "shows one call a turn": "one call a turn",
    "drops text beside calls": "dropped",
    "drops thinking": "thinking is dropped",
    "rewrites prompts": "what a prompt showed is shown otherwise later",
    "rewrites turns": "earlier turns are shown otherwise",
    "merges tokens": "the prompt's last token merges with what follows",
    "adds a header": "a header behind results that the prompt lacks",
    "moves text behind calls": "the text stands behind the results",
}
RENDERERS = {"glm4moe": "glm-4.5", "gptoss": "gpt-oss", "gemma4": "gemma4", "llama3": "llama-3"}
"""Families whose calls the library `renderers` reads: beginning of the template's name to the renderer's."""


@dataclass(frozen=True)
class Row:
    """What is known of a template."""

    tools: str
    calls: str
    thinking: str
    rules: str
    canonical: str
    reasons: str
    parser: str

    def __str__(self) -> str:
        return " | ".join(astuple(self))


def row(name: str) -> Row:
    """Try one template."""
    try:
        chat = format_of(name)
    except ChatFormatError as error:
        return Row("—", "—", "—", "—", "—", f"{error.message}: use `chat_format: plain`", "`hermes`, `tir`")
    conversation = chat._conversation
    canonical, reasons = _canonical(name, chat)
    ignored = f" (the template ignores {chat.abilities.ignored})" if conversation.own_preamble else ""
    return Row(
        tools=f"toolrl's preamble{ignored}" if conversation.own_preamble else "the template's own",
        calls="several" if conversation.parallel else "one",
        thinking=_thinking(name, chat),
        rules="pass",
        canonical=canonical,
        reasons=reasons,
        parser=_parser(name, chat),
    )


def _obstacle(name: str, chat: TemplateFormat, messages: list[Message]) -> str:
    return obstacle(chat, tokenizer_of(name), messages, [CALCULATOR])


def _thinking(name: str, chat: TemplateFormat) -> str:
    """How the template shows thinking."""
    if _closed(chat):
        return "off: prompts close it"

    def shown(messages: list[Message]) -> bool:
        return _obstacle(name, chat, messages) in ("", "adds a header")

    again, calls, answer = (shown(THINKING[case]) for case in ("several questions", "calls", "an answer"))
    if again and calls:
        kept = "kept"
    elif calls:
        kept = "kept until the next question"
    elif again:
        kept = "kept in answers, dropped beside calls"
    elif answer:
        kept = "in the last answer only"
    else:
        kept = "beside calls only" if shown(BESIDE_CALLS) else "dropped"
    kept += ", as text" if chat.abilities.shape.reasoning_key is None and kept != "dropped" else ""
    opened = chat.open([Message("user", "What?")], [CALCULATOR]).in_thinking
    return f"{kept}; prompts open it" if opened else kept


def _closed(chat: TemplateFormat) -> bool:
    try:
        chat.say(Message("assistant", "6", reasoning="two times three"))
    except ChatFormatError as error:
        return "closes thinking" in error.message
    return False


def _canonical(name: str, chat: TemplateFormat) -> tuple[str, str]:
    """Whether rule 3 holds, and which conversations are not canonical."""
    reasons: dict[str, list[str]] = {}
    passed = 0
    opened = chat.open([Message("user", "What?")], [CALCULATOR]).in_thinking
    for case in CASES:
        kinds = (THINKING, CASES) if opened else (CASES, THINKING)
        found = [_obstacle(name, chat, kind[case]) for kind in kinds]
        if "" in found:
            passed += 1
        else:
            reasons.setdefault(WHY[found[0]], []).append(case)
    told = "; ".join(f"{_and(cases)}: {why}" for why, cases in reasons.items())
    if passed:
        return "pass", told
    return "nothing to compare", "all: prompts open a thinking block that a rendering of the whole never shows"


def _and(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _parser(name: str, chat: TemplateFormat) -> str:
    """What reads the calls as this template writes them."""
    text = chat.decode(chat.say(Message("assistant", "", tool_calls=(ToolCall("f", {"a": "x"}, id="call_1"),)))).text
    if '<tool_call>\n{"name": "f", "arguments":' in text:
        return "`hermes`"
    if "<tool_call>\n<function=f>" in text:
        return "`qwen3_coder`"
    stem = name.partition(":")[2]
    renderer = next((renderer for begins, renderer in RENDERERS.items() if stem.startswith(begins)), None)
    other = "`hermes` with `preamble: always`"
    return f"`renderers` ({renderer}), or {other}" if renderer else other


def lines(names: Iterable[str]) -> list[str]:
    """Rows of the table; templates of which the same is known share one."""
    grouped: dict[str, list[str]] = {}
    for name in names:
        grouped.setdefault(str(row(name)), []).append(name.partition(":")[2])
    return [f"| {', '.join(f'`{name}`' for name in names)} | {cells} |" for cells, names in grouped.items()]


def bundle() -> str:
    """The package that bundles the templates, with its version."""
    return f"trl {version('trl')}"


def table() -> str:
    """Both halves."""
    parts = []
    titles = {"tokenizer": "Tokenizers, each with its own template:", "trl": f"Templates that {bundle()} bundles:"}
    for origin, title in titles.items():
        parts += [title, "\n".join([HEAD, *lines(name for name in NAMES if name.startswith(f"{origin}:"))])]
    return "\n\n".join(parts)


def page_with(text: str, made: str) -> str:
    """A page with the table in its place."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    made = table()
    if parser.parse_args().write:
        PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
    else:
        print(made)


if __name__ == "__main__":
    main()
