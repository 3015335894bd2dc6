"""The three exactness rules over every chat template that can be had here.

Templates are those of the tokenizers in $TOOLRL_TOKENIZERS and those that an installed `trl` bundles; where there is
neither, the templates of `conftest.py` are tested elsewhere and this file is skipped. Rules 1 and 2 are shown with real
episodes of an engine that samples anything, rule 3 with random conversations that are canonical for the template.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from canonical import CALCULATOR, CASES, SEARCH, THINKING, conversations, hostile_results, obstacle, words
from chat_families import NAMES, TRL_NAMES, family_of, format_of, tokenizer_of
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from toolrl.errors import ChatFormatError
from toolrl.protocols import EpisodeContext, Reply, ToolSession
from toolrl.rollout.environment import Environment, Limits
from toolrl.rollout.episode import EpisodePlan, EpisodeRun
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import (
    CallRecord,
    Episode,
    Generation,
    Message,
    ParsedTurn,
    Sampling,
    Task,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)
from toolrl_plugin_chat.template import TemplateFormat
from toolrl_testing.fakes import make_task

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


@dataclass
class Engine:
    """Samples what it is told to, and remembers what it was asked."""

    script: list[Generation]
    prompts: list[tuple[int, ...]] = field(default_factory=list)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def close(self, session: str) -> None: ...

    async def update_weights(self, weights: Any, version: int) -> None: ...

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, *, session: str, media: Sequence[Any] = ()
    ) -> Generation:
        self.prompts.append(tuple(prompt))
        return self.script[len(self.prompts) - 1]


@dataclass
class Plan:
    """What follows a turn: results of so many calls, or a user's reply where there are none."""

    results: list[str]
    reply: str


@dataclass
class PlannedTools:
    """A parser and a toolset that do what is planned, whatever the model said."""

    plans: list[Plan]
    parsed: int = 0
    answered: int = 0

    # The parser.

    def stops(self, turn_text: str) -> Sequence[str]:
        return ("</tool_call>",)

    def parse(self, text: str, **_: Any) -> ParsedTurn:
        number, self.parsed = self.parsed, self.parsed + 1
        if number >= len(self.plans) or not self.plans[number].results:
            return ParsedTurn((), text)
        count = len(self.plans[number].results)
        return ParsedTurn(
            tuple(ToolCall("calculator", {"expression": "1"}) for _ in range(count)), text, status="calls"
        )

    def render_results(self, records: Sequence[CallRecord]) -> Sequence[Message]:
        return [Message("tool", r.result.text, tool_call_id=r.call.id, name=r.call.name) for r in records]

    # The toolset.

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[ToolSession]:
        yield self

    def specs(self) -> Sequence[ToolSpec]:
        return [CALCULATOR]

    async def call(self, call: ToolCall) -> ToolResult:
        texts = [text for plan in self.plans for text in plan.results]
        self.answered += 1
        return ToolResult(texts[self.answered - 1])

    async def reward(self) -> None:
        return None

    async def opening(self) -> Sequence[Message]:
        return ()

    async def respond(self, turn: Turn) -> Reply | None:
        if turn.index >= len(self.plans):
            return None
        return Reply((Message("user", self.plans[turn.index].reply),))


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
        text = chat.decode(said[:-1]).text
        cuts = (
            sorted(chance.sample(range(1, len(text)), min(len(text) - 1, chance.randrange(1, 4)))) if text[1:] else []
        )
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        return [token for piece in pieces for token in chat._codec.encode(piece)] + said[-1:]
    return said


def play(chat: TemplateFormat, script: list[Generation], plans: list[Plan]) -> tuple[Episode, Engine]:
    planned, engine = PlannedTools(plans), Engine(script)
    tools = ToolBox([ToolEntry("calculator", planned)])
    environment = Environment("default", planned, chat, tools, max_turns=len(script))
    limits = Limits(max_turn_tokens=10**5, max_episode_tokens=10**6)

    async def main() -> Episode:
        return await EpisodeRun(EpisodePlan(make_task("What?"), "g", 0, seed=1), environment, engine, limits).run()

    return asyncio.run(main()), engine


@pytest.mark.parametrize("name", USABLE)
@COMMON
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
    plans=st.lists(st.builds(Plan, st.lists(hostile_results, max_size=3), words), min_size=3, max_size=3),
    contents=st.lists(words, min_size=4, max_size=4),
    chance=st.randoms(use_true_random=False),
)
def test_an_episode_keeps_what_was_sampled(
    name: str, kinds: list[str], plans: list[Plan], contents: list[str], chance: random.Random
) -> None:
    chat, tokenizer = format_of(name), tokenizer_of(name)
    # Results bring marks of this family, too.
    end = tokenizer.decode([chat.end_ids[0]])
    plans = [Plan([text.replace("x", end) for text in plan.results], plan.reply) for plan in plans[: len(kinds) - 1]]
    script = [
        _generation(sampled(chat, tokenizer, kind, content, chance), chance, index)
        for index, (kind, content) in enumerate(zip(kinds, contents, strict=False))
    ]
    episode, engine = play(chat, script, plans)
    assert episode.failure is None, episode.failure
    assert len(engine.prompts) == len(script)
    ids: list[int] = list(chat.open([Message("user", "What?")], [CALCULATOR]).ids)
    mask, logprobs, versions = [0] * len(ids), [0.0] * len(ids), [-1] * len(ids)
    for index, generation in enumerate(script):
        assert engine.prompts[index] == tuple(ids)
        ids += generation.ids
        mask += [1] * len(generation.ids)
        logprobs += generation.logprobs
        versions += generation.versions
        if index < len(plans):
            start = len(ids)
            bridge = engine.prompts[index + 1][start:]
            _check_bridge(chat, generation.ids, bridge, _following(episode, index))
            ids += bridge
            mask += [0] * len(bridge)
            logprobs += [0.0] * len(bridge)
            versions += [-1] * len(bridge)
    assert episode.ids == tuple(ids)
    assert episode.loss_mask == tuple(mask)
    assert episode.logprobs == tuple(logprobs)
    assert episode.weight_versions == tuple(versions)


def _generation(ids: list[int], chance: random.Random, version: int) -> Generation:
    return Generation(
        ids=tuple(ids),
        logprobs=tuple(-chance.random() - 0.001 for _ in ids),
        finish="stop",
        stopped_by="</tool_call>",
        versions=(version,) * len(ids),
    )


def _following(episode: Episode, index: int) -> list[Message]:
    """The messages between assistant turn `index` and the next one."""
    turns = [number for number, message in enumerate(episode.messages) if message.role == "assistant"]
    return list(episode.messages[turns[index] + 1 : turns[index + 1]])


def _check_bridge(chat: TemplateFormat, ids: Sequence[int], bridge: tuple[int, ...], messages: list[Message]) -> None:
    """It doesn't depend on what was sampled, but for the end mark: there, where the turn lacks one, and not twice."""
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


@pytest.mark.parametrize("name", [name for name in NAMES if name in WITHOUT_TEMPLATE])
def test_a_tokenizer_without_a_template_is_refused(name: str) -> None:
    with pytest.raises(ChatFormatError, match="no chat template") as caught:
        format_of(name)
    assert "chat_format: plain" in (caught.value.hint or "")
