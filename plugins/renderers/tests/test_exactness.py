"""The three rules, for every family: each prompt is the one before with what was sampled and given, exactly the sampled
tokens are trained, and for a canonical conversation the turns put together are what the library renders of the whole.

What is canonical differs: most families keep earlier thinking only up to the next question, some show one call a turn.
`MODES` says it for each, and where a rule doesn't hold whatever one does.
"""

from __future__ import annotations

import json
import os
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolrl.types import Message, ToolCall, ToolSpec
from toolrl_plugin_renderers import library
from toolrl_plugin_renderers.conversation import dicts
from toolrl_plugin_renderers.families import FAMILIES
from toolrl_plugin_renderers.setup import functions

COMMON = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), database=None)


@dataclass(frozen=True)
class Mode:
    """A way to run a family, and what conversations it shows whole."""

    options: dict[str, Any] = field(default_factory=dict)
    reasoning: bool = False
    """Assistant turns think."""
    questions: int = 3
    """How many questions there may be."""
    parallel: int = 3
    beside: bool = True
    """Text stands beside calls."""
    exact: bool = True
    """Turns put together are the whole."""


PLAIN = Mode()
THINKING = Mode(reasoning=True, questions=1)
KEEPING = Mode(reasoning=True)
OFF = {"enable_thinking": False}
ON = {"enable_thinking": True}

MODES: dict[str, list[Mode]] = {
    "qwen3": [THINKING, Mode(OFF)],
    "qwen3-vl": [PLAIN],
    "qwen3.5": [THINKING, Mode(OFF)],
    "qwen3.6": [THINKING, Mode(OFF), Mode({"preserve_thinking": True}, reasoning=True)],
    "qwen3.8": [KEEPING, Mode(OFF)],
    "prime-qwen3": [PLAIN],
    "glm-4.5": [THINKING, Mode(OFF)],
    "glm-5": [THINKING, Mode({"clear_thinking": False}, reasoning=True), Mode(OFF)],
    "glm-5.1": [THINKING, Mode({"clear_thinking": False}, reasoning=True), Mode(OFF)],
    "glm-5.3": [KEEPING],
    "deepseek-v3": [PLAIN],
    "deepseek-r1": [Mode(reasoning=True, questions=1, exact=False)],
    "deepseek-v4": [PLAIN, Mode(ON, reasoning=True)],
    "kimi-k2": [PLAIN],
    "kimi-k2.5": [Mode({"thinking": False}), Mode(reasoning=True, questions=1, exact=False)],
    "llama-3": [Mode(parallel=1, beside=False)],
    "gpt-oss": [
        Mode({"auto_drop_analysis": False, "conversation_start_date": "2026-01-01"}, True, 1, 1, False),
        Mode({"conversation_start_date": "2026-01-01"}, True, 1, 1, False, exact=False),
    ],
    "minimax-m2": [THINKING],
    "nemotron-3": [THINKING, Mode({"truncate_history_thinking": False}, reasoning=True)],
    "nemotron-3-ultra": [THINKING, Mode({"truncate_history_thinking": False}, reasoning=True)],
    "nemotron-3.5": [THINKING, Mode({"truncate_history_thinking": False}, reasoning=True)],
    "gemma4": [Mode(beside=False), Mode(ON, reasoning=True, questions=1, beside=False, exact=False)],
    "hy3": [PLAIN, Mode({"reasoning_effort": "high"}, reasoning=True)],
    "inkling": [PLAIN, KEEPING],
    "laguna-xs.2": [PLAIN, Mode(ON, reasoning=True)],
    "laguna-xs-2.1": [PLAIN, Mode(ON, reasoning=True)],
    "laguna-s-2.1": [KEEPING, Mode(OFF)],
    "laguna-m.1": [PLAIN, Mode(ON, reasoning=True)],
}

_FOLDER = os.environ.get("TOOLRL_TOKENIZERS")
REAL = {
    "qwen3": ("qwen3", "qwen3-vl", "qwen3.5", "qwen3.6", "qwen3.8", "prime-qwen3"),
    "llama3_2": ("llama-3",),
    "deepseek_v3": ("deepseek-v3", "deepseek-r1"),
}
"""By folder in $TOOLRL_TOKENIZERS: the families whose special tokens its tokenizer has."""
NAMES = [
    *MODES,
    *(
        f"{name}@{folder}"
        for folder, names in REAL.items()
        for name in names
        if _FOLDER and (Path(_FOLDER) / folder / "tokenizer.json").is_file()
    ),
]
CASES = [(name, mode) for name in NAMES for mode in MODES[name.partition("@")[0]]]
IDS = [f"{name}-{number}" for name in NAMES for number in range(len(MODES[name.partition("@")[0]]))]
modes = pytest.mark.parametrize(("name", "mode"), CASES, ids=IDS)


def test_every_family_has_its_modes() -> None:
    assert set(MODES) == set(FAMILIES)


letters = st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Co", "Cn"))
words = st.text(letters, min_size=1, max_size=16).map(str.strip).filter(bool).filter(lambda text: "<" not in text)
values = st.recursive(words | st.integers(-9, 9), lambda inner: st.lists(inner, max_size=2), max_leaves=3)
arguments = st.dictionaries(st.sampled_from(["query", "limit", "n"]), values, max_size=3)
results = st.just("") | st.text(letters | st.sampled_from("\n\t "), max_size=24).filter(lambda text: "<" not in text)


@st.composite
def conversations(draw: st.DrawFn, mode: Mode) -> list[Message]:
    """A canonical conversation: questions, calls with their results, answers."""

    def thought() -> str | None:
        return draw(words) if mode.reasoning else None

    messages = [Message("system", draw(words))] if draw(st.booleans()) else []
    number = 0
    for _ in range(draw(st.integers(1, mode.questions))):
        messages.append(Message("user", draw(words)))
        for _ in range(draw(st.integers(0, 2))):
            calls = []
            for index in range(draw(st.integers(1, mode.parallel))):
                calls.append(ToolCall("look", draw(arguments), id=f"functions.look:{index}"))
            content = draw(st.just("") | words) if mode.beside else ""
            messages.append(Message("assistant", content, tool_calls=tuple(calls), reasoning=thought()))
            messages += [Message("tool", draw(results), tool_call_id=c.id, name=c.name) for c in calls]
            number += 1
        messages.append(Message("assistant", draw(words), reasoning=thought()))
    return messages


def turns(chat: Any, messages: list[Message], tools: tuple[ToolSpec, ...]) -> list[tuple[list[int], list[int]]]:
    """Each turn of a conversation as an episode has it: its prompt, and what is sampled."""
    places = [index for index, message in enumerate(messages) if message.role == "assistant"]
    prompt = list(chat.open(messages[: places[0]], tools).ids)
    found = []
    for number, place in enumerate(places):
        said = list(chat.say(messages[place]))
        found.append((prompt, said))
        if number + 1 < len(places):
            between = messages[place + 1 : places[number + 1]]
            prompt = [*prompt, *said, *chat.bridge(said, between, tools).ids]
    return found


@modes
def test_turns_put_together_are_the_whole(name: str, mode: Mode, format_of: Any, look: ToolSpec) -> None:
    if not mode.exact:
        pytest.skip("this family rewrites earlier turns whatever one does, and the check says so")
    chat, tools = format_of(name, **mode.options), (look,)

    @COMMON
    @given(conversations(mode))
    def run(messages: list[Message]) -> None:
        prompt, said = turns(chat, messages, tools)[-1]
        whole, ids = list(chat.whole(messages, tools)), [*prompt, *said]
        # Some families end the last turn with nothing, or with a line break that is never sampled.
        assert whole[: len(ids)] == ids or whole == ids[:-1], (chat.decode(whole).text, chat.decode(ids).text)

    run()


@modes
def test_the_check_says_the_same(name: str, mode: Mode, format_of: Any, look: ToolSpec) -> None:
    """A remark where turns are rewritten, none where they aren't."""
    remarks = [remark for remark in format_of(name, **mode.options).check((look,)) if "rewrites" in remark]
    assert bool(remarks) == (not mode.exact or (mode.reasoning and mode.questions == 1))


UNMARKED = {
    "gpt-oss": {
        "<|start|>",
        "assistant",
        "<|channel|>",
        "final",
        "<|message|>",
        " to",
        "=",
        "functions",
        ".look",
        "comment",
        "ary",
    },
    "glm-4.5": {"\n"},
}
"""Tokens that a model samples and the library's mask leaves out: headers within a turn of Harmony, GLM's line break."""


@modes
def test_exactly_the_sampled_tokens_are_trained(
    name: str, mode: Mode, format_of: Any, tokenizer_of: Any, look: ToolSpec
) -> None:
    """Against the library's own mark of what a model samples, wherever our turns are its rendering. It also marks what
    the generation prompt says in the model's stead, such as `<think>`; toolrl trains what was sampled."""
    if not mode.exact:
        pytest.skip("the rendering of the whole isn't what was sampled")
    family = name.partition("@")[0]
    chat = format_of(name, **mode.options)
    tools = (look,) if chat._turns.shows_tools else ()
    renderer = library.build(family, dict(mode.options), tokenizer_of(name), "here")

    @COMMON
    @given(conversations(mode))
    def run(messages: list[Message]) -> None:
        found = turns(chat, messages, tools)
        rendered = renderer.render(dicts(messages, FAMILIES[family]), tools=functions(tools))
        theirs = list(rendered.sampled_mask)
        at = 0
        for prompt, said in found:
            given = theirs[at : len(prompt)]
            # Nothing is marked in what was given but its end, which stands for the model's own beginning.
            assert sum(given) <= 8
            assert given == sorted(given)
            at = len(prompt) + len(said)
            marks = theirs[len(prompt) : at]
            missing = {token for token, mark in zip(said, marks, strict=False) if not mark}
            assert {chat._setup.text([token]) for token in missing} <= UNMARKED.get(family, set())

    run()


@modes
def test_what_is_said_is_read(name: str, mode: Mode, format_of: Any, parser_of: Any, look: ToolSpec) -> None:
    """The parser finds in each turn the calls, the content and the thinking that went into it."""
    chat, parser = format_of(name, **mode.options), parser_of(name, **mode.options)
    plain = st.fixed_dictionaries({"query": words, "limit": st.integers(-9, 9)})

    @COMMON
    @given(st.lists(plain, max_size=mode.parallel), words, words)
    def run(asked: list[dict[str, Any]], content: str, thought: str) -> None:
        calls = tuple(ToolCall("look", values, id=f"functions.look:{n}") for n, values in enumerate(asked))
        content = content if mode.beside or not calls else ""
        reasoning = thought if mode.reasoning else None
        message = Message("assistant", content, tool_calls=calls, reasoning=reasoning)
        said = chat.say(message)
        opened = chat.open([Message("user", "x")], (look,)).in_thinking
        turn = parser.parse_ids(said, chat.decode(said), tools=(look,), prompt_in_thinking=opened)
        assert all(isinstance(item, ToolCall) for item in turn.items), turn
        assert same([item.arguments for item in turn.items]) == same(asked)
        assert same(turn.content) == same(content)
        assert same((turn.reasoning or "").strip()) == same(reasoning or "")

    run()


def same(value: Any) -> Any:
    """As a tokenizer's normaliser may write it."""
    return json.loads(unicodedata.normalize("NFC", json.dumps(value, ensure_ascii=False)))
