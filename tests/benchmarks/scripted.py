"""The work that several benchmarks share: episodes of several turns whose tokens stand in a script.

A turn is some words and a call of one of two tools, in the form of Qwen2.5; the last turn is an answer. The tokenizer
is a byte-level BPE over English text that comes with Python; the chat template is that of Qwen2.5 Instruct. Nothing is
downloaded. What is sampled is encoded once, before anything is timed.
"""

from __future__ import annotations

import asyncio
import json
import pydoc_data.topics
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from toolrl.config.tool_policy import PolicyOptions
from toolrl.parsing.flags import EndFlags
from toolrl.protocols import BuildContext
from toolrl.rollout.environment import Environment, NamedReward
from toolrl.tools import FunctionTool, as_toolset, tool
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.tools.truncate import token_cut
from toolrl.types import Episode, Generation, Message, Sampling, Score, Task
from toolrl_plugin_chat.template import TemplateFormat
from toolrl_plugin_qwen.hermes import HermesParser

VOCABULARY = 4096
SYSTEM = "You solve arithmetic word problems. Call a tool for every product and every sum, and give the number at last."
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n\
You are provided with function signatures within <tools></tools> XML tags:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n\
</tool_call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or \
(message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


@cache
def make_tokenizer() -> Any:
    """A tokenizer like Qwen2.5's with a small vocabulary."""
    import transformers
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Split(Regex(r"\d"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    size = VOCABULARY - len(CONTROLS) - len(TAGS)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*pydoc_data.topics.topics.values(), *[TEMPLATE] * 12], trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROLS])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in TAGS])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )


# What is asked, said and answered.


def question(number: int) -> str:
    chance = random.Random(f"question {number}")
    a, b = chance.randrange(100, 1000), chance.randrange(100, 1000)
    return f"A warehouse has {a} shelves with {b} boxes on each. How many boxes are there, and {a} more?"


@dataclass(frozen=True)
class Say:
    """One turn: its text, and its call where it has one."""

    text: str
    name: str | None = None
    arguments: dict[str, int] | None = None


@dataclass(frozen=True)
class Work:
    """How large an episode is."""

    turns: int = 5
    """Generations of an episode: all but the last make a call."""
    words: int = 30
    """Of each turn."""
    variants: int = 64
    """Different episodes; more of them repeat these."""

    def say(self, variant: int, turn: int) -> Say:
        """The turn of an episode of this variant."""
        return _say(self, variant, turn)


@cache  # A run is checked against it while it is timed, and making it up takes a tenth of what a turn does.
def _say(work: Work, variant: int, turn: int) -> Say:
    chance = random.Random(f"say {variant} {turn}")
    words = " ".join(chance.choices(_WORDS, k=work.words))
    if turn >= work.turns - 1:
        return Say(f"{words}. The answer is {chance.randrange(1000)}.")
    name = "multiply" if turn % 2 else "add"
    arguments = {"a": chance.randrange(100, 1000), "b": chance.randrange(100, 1000)}
    call = json.dumps({"name": name, "arguments": arguments})
    return Say(f"{words}.\n<tool_call>\n{call}\n</tool_call>", name, arguments)


_WORDS = tuple(
    re.findall(r"\w+", "the number of boxes on each shelf is what we need so let us compute it and then go on")
)


class Script:
    """The tokens of every turn, end mark included."""

    def __init__(self, work: Work, tokenizer: Any) -> None:
        self.work = work
        end = [tokenizer.eos_token_id]
        self.turns = [
            [
                (*tokenizer.encode(work.say(variant, turn).text, add_special_tokens=False), *end)
                for turn in range(work.turns)
            ]
            for variant in range(work.variants)
        ]

    def turn(self, episode: int, turn: int) -> tuple[int, ...]:
        """The ids of a turn of the episode of this number."""
        return self.turns[episode % self.work.variants][turn]


class ScriptEngine:
    """An engine that answers with the script's tokens as soon as the event loop comes round. An episode's number is
    that of its task."""

    def __init__(self, script: Script) -> None:
        self._generations = [
            [Generation(ids, (-0.5,) * len(ids), "stop", stopped_by=ids[-1], versions=(0,) * len(ids)) for ids in turns]
            for turns in script.turns
        ]
        self._variants = script.work.variants
        self._said: Counter[str] = Counter()
        self.calls = 0

    async def start(self) -> None:
        """Nothing to start."""

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, *, session: str, media: Sequence[Any] = ()
    ) -> Generation:
        await asyncio.sleep(0)
        self.calls += 1
        turn = self._said[session]
        self._said[session] = turn + 1
        return self._generations[int(session.split("/")[1]) % self._variants][turn]

    async def close(self, session: str) -> None:
        self._said.pop(session, None)

    async def update_weights(self, weights: Any, version: int) -> None:
        """It has none."""

    async def stop(self) -> None:
        """Nothing to stop."""


@tool
async def add(a: int, b: int) -> str:
    """Add two whole numbers.

    Args:
        a: The first summand.
        b: The second summand.
    """
    return str(a + b)


def _multiply(a: int, b: int) -> str:
    """Multiply two whole numbers.

    Args:
        a: The first factor.
        b: The second factor.
    """
    return str(a * b)


multiply = tool(name="multiply")(_multiply)
multiply_inline = tool(name="multiply", inline=True)(_multiply)


class EndsWell:
    """A reward that looks at the last turn."""

    async def score(self, episode: Episode) -> Score:
        right = "The answer is" in episode.turns[-1].content
        return Score(float(right), metrics={"correct": float(right)})


def make_environment(work: Work, tools: Sequence[FunctionTool]) -> Environment:
    """As a config with the template format, hermes, two tools and a reward gives it."""
    context = BuildContext("bench", tokenizer=make_tokenizer())
    chat = TemplateFormat(None, context)
    entries = [ToolEntry(one.name, as_toolset(one, None, context), policy=PolicyOptions()) for one in tools]
    return Environment(
        "default",
        HermesParser(),
        chat,
        ToolBox(entries, cut=token_cut(chat)),
        [NamedReward("ends_well", EndsWell())],
        system_prompt=SYSTEM,
        end_flags=EndFlags(("answer",)),
        max_turns=work.turns,
    )


def make_tasks(count: int) -> list[Task]:
    """Tasks with different questions."""
    return [Task(str(number), (Message("user", question(number)),)) for number in range(count)]
