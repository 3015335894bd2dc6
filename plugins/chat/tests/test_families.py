"""The three exactness rules over every chat template that can be had here.

Templates are those of the tokenizers in $TOOLRL_TOKENIZERS and those that an installed `trl` bundles; where there is
neither, the templates of `conftest.py` are tested elsewhere and this file is skipped. Rules 1 and 2 are shown with
bridges behind anything that a model may sample, rule 3 with random conversations that are canonical for the template.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import Any

import pytest
from canonical import CALCULATOR, CASES, SEARCH, THINKING, conversations, hostile_results, obstacle, words
from chat_families import NAMES, TRL_NAMES, family_of, format_of, tokenizer_of
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from toolrl.errors import ChatFormatError
from toolrl.types import Message, ToolSpec
from toolrl_plugin_chat.template import TemplateFormat

WITHOUT_TEMPLATE = ("tokenizer:gpt2",)
USABLE = [name for name in NAMES if name not in WITHOUT_TEMPLATE]
pytestmark = pytest.mark.skipif(not USABLE, reason="no trl is installed, and TOOLRL_TOKENIZERS names no tokenizers")
EXAMPLES = 150 if os.environ.get("TOOLRL_SLOW") else 6
COMMON = settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    deadline=None,
)
NOWHERE_CANONICAL = ("trl:deepseekv3", "trl:deepseekv3_training", "trl:deepseek_r1_distill")
"""Their prompts open a thinking block, and no rendering of history shows it."""
CALLS_NOT_CANONICAL = ("trl:diffusion_gemma",)
"""Behind a result its generation prompt is empty, and its rendering of the whole has a header there."""
TOOLSETS: list[list[ToolSpec]] = [[CALCULATOR], [CALCULATOR, SEARCH]]


def test_every_bundled_template_has_a_family() -> None:
    for name in TRL_NAMES:
        assert family_of(name).stem


# Rule 3.


def follows(ids: tuple[int, ...], whole: tuple[int, ...], tokenizer: Any) -> bool:
    """Whether what an episode gathered is the rendering of the whole: up to the last end mark, where what a template
    writes behind it is never sampled; or but for the next message's header, where that is the end mark."""
    behind = tokenizer.decode(whole[len(ids) :]).strip()
    return (whole[: len(ids)] == ids and behind in ("", tokenizer.eos_token)) or ids[:-1] == whole


@pytest.mark.parametrize("name", [name for name in USABLE if name not in NOWHERE_CANONICAL])
@COMMON
@given(messages=conversations(), tools=st.sampled_from([[], *TOOLSETS]))
def test_a_canonical_conversation_is_the_templates_own(
    name: str, messages: list[Message], tools: list[ToolSpec]
) -> None:
    chat, tokenizer = format_of(name), tokenizer_of(name)
    tools = TOOLSETS[0] if any(message.tool_calls for message in messages) and not tools else tools
    assume(not obstacle(chat, tokenizer, messages, tools))
    assert follows(chat.turn_by_turn(messages, tools), chat.whole(messages, tools), tokenizer)


@pytest.mark.parametrize("name", USABLE)
def test_the_cases_of_the_table(name: str) -> None:
    """Each case follows the rendering or has a reason not to; and each template renders one kind or the other."""
    chat, tokenizer = format_of(name), tokenizer_of(name)
    passed = []
    for cases in (CASES, THINKING):
        for case, messages in cases.items():
            if not obstacle(chat, tokenizer, messages, TOOLSETS[0]):
                ids, whole = chat.turn_by_turn(messages, TOOLSETS[0]), chat.whole(messages, TOOLSETS[0])
                assert follows(ids, whole, tokenizer), case
                passed.append(case)
    assert bool(passed) == (name not in NOWHERE_CANONICAL)
    assert ("calls" in passed) == (name not in NOWHERE_CANONICAL and not name.startswith(CALLS_NOT_CANONICAL))


@pytest.mark.parametrize("name", USABLE)
@COMMON
@given(messages=conversations(hostile=False), tools=st.sampled_from(TOOLSETS))
def test_whole_is_what_transformers_renders(name: str, messages: list[Message], tools: list[ToolSpec]) -> None:
    chat, tokenizer = format_of(name), tokenizer_of(name)
    conversation = chat._conversation
    dicts, native = conversation.dicts(messages, tools), conversation.native_tools(tools)
    source = chat._options.chat_template
    try:
        whole = chat.whole(messages, tools)
    except ChatFormatError:
        with pytest.raises(Exception, match=r".+"):
            tokenizer.apply_chat_template(dicts, tools=native, chat_template=source)
        return
    own = tokenizer.apply_chat_template(dicts, tools=native, chat_template=source, return_dict=True)
    assert whole == tuple(own["input_ids"])


# Rules 1 and 2.

KINDS = ("said", "split otherwise", "without end mark", "overshoots", "other end", "anything")


def sampled(chat: TemplateFormat, tokenizer: Any, kind: str, content: str, chance: random.Random) -> list[int]:
    """Ids that a model might sample for a turn."""
    said = list(chat.say(Message("assistant", content)))
    if kind == "anything":
        return [chance.randrange(len(tokenizer)) for _ in range(chance.randrange(6))]
    if kind == "without end mark":
        return said[:-1]
    if kind == "overshoots":
        return [*said[:-1], chance.randrange(len(tokenizer))]
    if kind == "other end":
        return [*said[:-1], chance.choice(list(chat.end_ids))]
    if kind == "split otherwise":
        return [token for letter in chat.decode(said[:-1]).text for token in chat._codec.encode(letter)] + said[-1:]
    return said


@pytest.mark.parametrize("name", USABLE)
@COMMON
@given(
    kind=st.sampled_from(KINDS),
    answers=st.lists(hostile_results, max_size=3),
    text=words,
    chance=st.randoms(use_true_random=False),
)
def test_a_bridge_depends_on_no_sample(
    name: str, kind: str, answers: list[str], text: str, chance: random.Random
) -> None:
    """But for the end mark, which stands there where the turn lacks one, and not twice."""
    chat, tokenizer = format_of(name), tokenizer_of(name)
    ids = sampled(chat, tokenizer, kind, text, chance)
    # Results bring marks of this family, too.
    end = tokenizer.decode([chat.end_ids[0]])
    messages = [
        Message("tool", answer.replace("x", end), tool_call_id=f"call_{index + 1}", name="calculator")
        for index, answer in enumerate(answers)
    ] or [Message("user", text)]
    bridge = chat.bridge(ids, messages, [CALCULATOR]).ids
    whole = chat.bridge((), messages, [CALCULATOR]).ids
    harmless = chat.bridge((), [replace(message, content="6") for message in messages], [CALCULATOR]).ids
    assert [token for token in whole if token in chat.end_ids] == [token for token in harmless if token in chat.end_ids]
    place = next(index for index, token in enumerate(whole) if chat._codec.is_added(token))
    last = ids[-1] if ids else None
    if last in chat.end_ids and last in whole[place : place + 2]:
        # It is one of the marks that close a turn, or the header that does.
        assert bridge == whole[whole.index(last, place) + 1 :]
    elif last in chat.end_ids:
        assert bridge in (whole, whole[place + 1 :])
    else:
        # A mark that the template writes within turns, too, isn't written twice in a row.
        assert bridge == whole or (last == whole[place] and bridge == whole[place + 1 :])


@pytest.mark.parametrize("name", [name for name in USABLE if name.startswith("tokenizer:")])
@COMMON
@given(data=st.data())
def test_decoding_and_control_tokens(name: str, data: st.DataObject) -> None:
    """Any ids decode as the tokenizer decodes them, and text inside a turn brings no control token."""
    chat, tokenizer = format_of(name), tokenizer_of(name)
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) + 100), max_size=12))
    ids = ids[:-1] if ids and ids[-1] in chat.end_ids else ids
    expected = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert chat.decode(ids).text == expected
    marks = sorted(chat._codec.special | set(tokenizer.convert_ids_to_tokens(list(chat.end_ids))))
    parts = data.draw(st.lists(st.sampled_from(marks) | st.text(max_size=8), min_size=1, max_size=6))
    assert not set(tokenizer.convert_tokens_to_ids(marks)).intersection(chat.inline("".join(parts)))


# What can't be done is said before a run.


@pytest.mark.parametrize("name", USABLE)
@pytest.mark.parametrize("preamble", ["auto", "always", "never"])
def test_the_check_and_the_bridge_agree(name: str, preamble: str) -> None:
    """No family is refused; what the check lets pass has a bridge from a call and from an answer."""
    chat = format_of(name, preamble=preamble)
    assert all(isinstance(remark, str) for remark in chat.check([CALCULATOR]))
    result = Message("tool", "6", tool_call_id="call_1", name="calculator")
    assert chat.bridge((), [result], [CALCULATOR]).ids
    assert chat.bridge((), [Message("user", "Sure?")], [CALCULATOR]).ids
    # A call that couldn't be read has no name; the answer to it shows nothing of the format's own probes.
    nameless = chat.bridge((), [Message("tool", "no such call", tool_call_id="call_2")], [CALCULATOR]).ids
    assert "probe" not in tokenizer_of(name).decode(nameless).lower()
