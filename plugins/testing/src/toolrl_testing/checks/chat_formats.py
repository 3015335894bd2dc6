"""Contracts of chat formats: the laws by which turns put together equal a conversation rendered as a whole."""

from __future__ import annotations

from toolrl.protocols import ChatFormat
from toolrl.types import Message, ToolSpec
from toolrl_testing.checks import require

TOOL = ToolSpec(
    "look_up_word",
    "Looks a word up.",
    {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
)
_TEXTS = ("4", " two  spaces ", "line\nline\n\n", "quotes \"' \\", "ünï 🙂 漢字", "<tool_call>{}</tool_call>", "")


def check_laws(chat: ChatFormat, *, tools: bool = True) -> None:
    """`open`, `say` and `bridge` fit together; with `tools=False` for a format that refuses tools."""
    prompt = (Message("system", "Be brief."), Message("user", "What is 2 + 2?"))
    said, answer = Message("assistant", "It is 4."), Message("user", "And 3 + 3?")
    opened = chat.open(prompt, ()).ids
    require(opened == chat.open(prompt, ()).ids, "open() gives other ids when it is asked again")
    spoken = chat.say(said)
    ends = tuple(chat.end_ids)
    require(ends, "end_ids is empty: nothing would end a turn")
    require(spoken and spoken[-1] in ends, f"say() ends with the id {spoken[-1:]}, which isn't among end_ids {ends}")
    require(not set(spoken[:-1]) & set(ends), "say() holds an end mark before its end: the engine would stop there")
    bridge = chat.bridge(spoken, (answer,), ()).ids
    whole = chat.open((*prompt, said, answer), ()).ids
    _same(whole, (*opened, *spoken, *bridge), "open + say + bridge differs from the conversation opened as a whole")
    _same(
        chat.bridge(spoken[:-1], (answer,), ()).ids,
        (spoken[-1], *bridge),
        "bridge() after a turn that was cut off must begin with the end mark that is missing",
    )
    if tools:
        text = chat.decode(chat.open(prompt, (TOOL,)).ids).text
        require(TOOL.name in text, f"open() leaves out the tool {TOOL.name!r}: {text!r:.500}")


def check_text(chat: ChatFormat) -> None:
    """`inline`, `decode` and `token_count` fit together, and text can't forge an end mark."""
    for text in _TEXTS:
        ids = chat.inline(text)
        require(chat.token_count(text) == len(ids), f"token_count({text!r}) isn't the length of inline()")
        decoded = chat.decode(ids)
        require(decoded.text == text, f"decode(inline({text!r})) gives {decoded.text!r}")
        offsets = decoded.offsets
        require(len(offsets) == len(ids) + 1, f"decode() of {len(ids)} ids gives {len(offsets)} offsets")
        require(
            list(offsets) == sorted(offsets) and offsets[0] >= 0 and offsets[-1] == len(text),
            f"decode() of {text!r} gives the offsets {offsets}: they have to rise and end at {len(text)}",
        )
    spoken = chat.say(Message("assistant", "It is 4."))
    text = chat.decode(spoken).text
    require(text.strip() == "It is 4.", f"decode(say('It is 4.')) gives {text!r}: the closing end mark is left out")
    for end in chat.end_ids:
        mark = chat.decode((end, *chat.inline("x"))).text.removesuffix("x")
        require(
            not set(chat.inline(mark)) & set(chat.end_ids),
            f"inline({mark!r}) makes the end mark itself: a tool's output could end the turn",
        )


def _same(expected: tuple[int, ...], got: tuple[int, ...], message: str) -> None:
    require(tuple(expected) == tuple(got), f"{message}: {list(got)} instead of {list(expected)}")
