"""The data that flows through a run: tasks, messages, calls, results, turns, episodes.

All of it is frozen: a component reads it and returns new data, it never changes its arguments. Nothing here
imports more than the standard library, so that a listing, a worker or a test can use it at no cost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from toolrl.message_types import IMAGE_MARK as IMAGE_MARK
from toolrl.message_types import CallError as CallError
from toolrl.message_types import Media as Media
from toolrl.message_types import Message as Message
from toolrl.message_types import Role as Role
from toolrl.message_types import ToolCall as ToolCall
from toolrl.token_types import Decoded as Decoded
from toolrl.token_types import Generation as Generation
from toolrl.token_types import MediaInput as MediaInput
from toolrl.token_types import Rendered as Rendered
from toolrl.token_types import Sampling as Sampling
from toolrl.token_types import Span as Span
from toolrl.token_types import common_beginning as common_beginning


@dataclass(frozen=True, slots=True)
class Task:
    """One row of a data set: what is asked. The tools come from the environment."""

    id: str
    messages: tuple[Message, ...]
    answer: Any = None
    """The ground truth; never shown to the model."""
    environment: str | None = None
    """The name under `environments:`; None takes the one that `task_type` or `agent_name` of `extra` names, else the
    only one, else `default`."""
    tools: tuple[str, ...] | None = None
    """A selection among the environment's tools by name; None for all."""
    tools_kwargs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By tool name: `create_kwargs`, `execute_kwargs`, `calc_reward_kwargs`, `release_kwargs`."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What else the row held (data source, split, index, level …); rewards may read it."""
    dataset: str | None = None
    """The name of the data set, where the config has a list of them."""


class Markers(NamedTuple):
    """What stands around a call of a tool, for parsers of tags; the first of each is what a model is shown."""

    start: tuple[str, ...]
    end: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it."""

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    """A JSON Schema of type object."""
    markers: Markers | None = None
    """None leaves them to the parser, if it knows any."""

    def as_function(self) -> dict[str, Any]:
        """The OpenAI function form that chat templates take in `tools=`."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": dict(self.parameters)},
        }

    @classmethod
    def from_function(cls, value: Mapping[str, Any]) -> ToolSpec:
        """From the OpenAI function form, with or without its outer `{"type": "function", "function": …}`."""
        inner = value.get("function", value)
        named = isinstance(inner, Mapping) and isinstance(inner.get("name"), str) and inner["name"]
        if not named or not isinstance(inner.get("parameters") or {}, Mapping):
            raise ValueError(
                "a tool schema needs a name, and its parameters are an object: expected "
                '{"type": "function", "function": {"name": …, "description": …, "parameters": {…}}}, '
                f"got {value!r:.200}"
            )
        parameters = inner.get("parameters") or {"type": "object", "properties": {}}
        return cls(inner["name"], str(inner.get("description") or ""), parameters)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to one call. Always something that the model can read."""

    text: str
    media: tuple[Media, ...] = ()
    reward: float | None = None
    """A step reward, credited to the turn of the call."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    done: bool = False
    """Ends the episode with stop reason `tool_done`."""
    error: str | None = None
    """None for success, else `unknown_tool, bad_arguments, malformed, timeout, crash, tool_error, too_many_calls,
    limit` or `unavailable`. The text says the same in words."""
    truncated: bool = False
    """True where the policy cut the text."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One answered call of a turn."""

    call: ToolCall | CallError
    result: ToolResult
    started: float = 0.0
    """Seconds since the episode began."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """What a parser made of a turn's text."""

    items: tuple[ToolCall | CallError, ...] = ()
    """Calls and errors in document order."""
    content: str = ""
    """The text without calls and without reasoning."""
    reasoning: str | None = None
    answer: str | None = None
    """What an end flag matched; the episode ends with it."""
    status: Literal["calls", "final", "continue"] = "final"
    """`calls`: run the items. `final`: no call. `continue`: nothing to run yet, generate on in the same turn."""
    content_spans: tuple[Span, ...] = ()
    """The characters of the turn's text that `content` is joined from. A parser that leaves this empty says nothing of
    where its content stood."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a reward gives for an episode."""

    value: float
    per_turn: Mapping[int, float] = field(default_factory=dict)
    """Credit by turn index, in addition to `value`."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Logged under `reward/<name>/<key>`; `correct` (0 or 1) is what accuracy is computed from."""
    per_role: Mapping[str, float] = field(default_factory=dict)
    """Credit by role, in addition to `value`: what only the trajectories of this role are trained on."""


@dataclass(frozen=True, slots=True)
class RewardEntry:
    """One part of an episode's reward."""

    turn: int | None
    """Turn index, or None for the whole episode."""
    source: str
    """`step:<tool>`, `tool:<tool>`, or `reward:<name>`."""
    value: float
    """As given, before its weight."""
    weight: float = 1.0
    role: str | None = None
    """The role whose trajectories it is credited to; None for all."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a turn's text and its author."""

    origin: Literal["model", "tool"]
    text: str
    tokens: Span
    """Tokens of the trajectory's ids."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant turn: what was sampled, what was read from it, what was answered."""

    index: int
    """Counts through the episode, by start of sampling."""
    segments: tuple[Segment, ...]
    """More than one where tool results stand inside the turn."""
    items: tuple[ToolCall | CallError, ...]
    calls: tuple[CallRecord, ...]
    finish: str
    """Of its last generation: stop, length or abort."""
    content: str = ""
    reasoning: str | None = None
    generate_seconds: float = 0.0
    tool_seconds: float = 0.0
    usage: Mapping[str, float] = field(default_factory=dict)
    """What an API counted: `requests`, `prompt_tokens`, `completion_tokens`, `cost` …; empty where tokens are known."""

    @property
    def text(self) -> str:
        """What the model wrote in this turn, tool text left out."""
        return "".join(segment.text for segment in self.segments if segment.origin == "model")

    @property
    def message(self) -> Message:
        """What stands for it in a conversation."""
        calls = tuple([item for item in self.items if isinstance(item, ToolCall)])
        return Message("assistant", self.content, tool_calls=calls, reasoning=self.reasoning)

    @property
    def sampled_tokens(self) -> int:
        known = sum(s.tokens[1] - s.tokens[0] for s in self.segments if s.origin == "model")
        return int(self.usage.get("completion_tokens", known))


def _indented(text: str) -> str:
    # Of all that anyone may take for the end of a line.
    return "\n".join(f"  {line}" for line in text.strip().splitlines())


_Cut = Literal["max_turns", "max_tokens", "context_full", "timeout"]
StopReason = Literal["answer", "final", _Cut, "tool_done", "invalid_calls", "error", "aborted"]


@dataclass(frozen=True, slots=True)
class EpisodeFailure:
    """An exception that ended an episode, and whose fault it was."""

    fault: str
    """parser, tool, engine, reward, chat_format, harness or toolrl."""
    component: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A sequence of tokens that were only appended. The four token fields have the same length; behind an API they are
    empty.

    Each sampled token of an episode has mask 1 in exactly one of its trajectories: where it was sampled. One that
    restates the token, as it goes on from there, holds it as given.
    """

    ids: tuple[int, ...] = ()
    """All tokens, the prompt first."""
    loss_mask: tuple[int, ...] = ()
    """1 exactly on tokens that were sampled here."""
    logprobs: tuple[float, ...] = ()
    """The engine's on sampled tokens, 0.0 elsewhere."""
    weight_versions: tuple[int, ...] = ()
    """The version that sampled a token, −1 elsewhere."""
    prompt_length: int = 0
    """Tokens before the first that was sampled here, behind an API as that counts them."""
    turns: tuple[Turn, ...] = ()
    """Those that were sampled here, by index."""
    messages: tuple[Message, ...] = ()
    """The whole conversation as messages, the prompt included."""
    media: tuple[MediaInput, ...] = ()
    """The images among the ids, in order."""
    routes: bytes | None = None
    """`Generation.routes` of the tokens so far; None where the engine doesn't record them."""
    sampling_masks: bytes | None = None
    """`Generation.sampling_masks` of all generations, joined; None where the engine doesn't record them."""
    teacher_logprobs: tuple[float, ...] | None = None
    """Natural log-probability of each token under a teacher, 0.0 on tokens that weren't sampled here; None without."""
    role: str = "agent"
    """Who speaks; in a group, roles are compared with themselves."""
    trained: bool = True


def _of_main(name: str) -> Any:
    return property(lambda episode: getattr(episode.main, name))


@dataclass(frozen=True, slots=True)
class Episode:
    """One finished episode: one trajectory where one conversation was only continued, several where history was
    rewritten, sub-agents were asked, or several roles spoke. What is said of one conversation is said of `main`."""

    id: str
    """`<group>#<index in its group>`; unique in its run."""
    task: Task
    environment: str
    group: str
    index: int
    """Position in its group, 0 … G−1."""
    trajectories: tuple[Trajectory, ...]
    """In the order in which they were opened."""
    stop_reason: StopReason
    answer: str | None = None
    rewards: tuple[RewardEntry, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    failure: EpisodeFailure | None = None
    seconds: float = 0.0
    temperature: float = 1.0
    """At which it was sampled; the trainer uses the same."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What the episode's tools handed on by `EpisodeContext.notes`: plain JSON values."""

    @property
    def main(self) -> Trajectory:
        """The trajectory with the last turn of the role `agent`, or of any role where `agent` has none. Its fields are
        the episode's too: `messages`, `ids`, `loss_mask`, `logprobs`, `weight_versions`, `prompt_length`, `media` and
        `routes`."""
        return max(
            self.trajectories,
            key=lambda it: (bool(it.turns), it.role == "agent", it.turns[-1].index if it.turns else 0),
            default=Trajectory(),
        )

    ids, loss_mask, logprobs = _of_main("ids"), _of_main("loss_mask"), _of_main("logprobs")
    weight_versions, prompt_length = _of_main("weight_versions"), _of_main("prompt_length")
    messages, media, routes = _of_main("messages"), _of_main("media"), _of_main("routes")

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Of all trajectories, by index."""
        return self.turns_of(None)

    def turns_of(self, role: str | None) -> tuple[Turn, ...]:
        """A role's turns, or those of all roles, by index."""
        turns = (turn for it in self.trajectories if role in (None, it.role) for turn in it.turns)
        return tuple(sorted(turns, key=lambda turn: turn.index))

    @property
    def reward(self) -> float:
        """Σ weight · value over all parts."""
        return sum(entry.weight * entry.value for entry in self.rewards)

    def reward_of(self, role: str) -> float:
        """The same over the parts that are credited to a role."""
        return sum(entry.weight * entry.value for entry in self.rewards if entry.role in (None, role))

    @property
    def model_text(self) -> str:
        """Everything the role of `main` wrote, turn by turn, tool text left out."""
        return "\n".join(turn.text for turn in self.turns_of(self.main.role))

    @property
    def final_text(self) -> str:
        """What the model wrote in the last turn of `main`; empty where there is none."""
        return self.main.turns[-1].text if self.main.turns else ""

    def content_of(self, part: Literal["final", "answer", "all"]) -> str:
        """The model's own words, without reasoning and calls: of the `final` turn, of `all` turns, or the `answer` that
        an end flag found. Empty where there are none; never what a tool answered."""
        if part == "answer":
            return self.answer or ""
        turns = self.turns_of(self.main.role) if part == "all" else self.main.turns[-1:]
        return "\n".join(turn.content for turn in turns)

    def transcript(
        self, *, prompt: bool = True, thinking: bool = True, calls: bool = True, tool_output: bool = True
    ) -> str:
        """The conversation as text, for a reader: `tool_output=False` leaves out what tools answered, and so on.

        Each part has a heading of its own at the beginning of a line: `system:`, `user:`, `thinking:`, `assistant:`,
        `call:` or `tool:`. All else is indented by two spaces, so no text can pass for a heading.
        """
        messages, turns = self.main.messages, len(self.main.turns)
        own = [place for place, message in enumerate(messages) if message.role == "assistant"]
        first = own[-turns] if 0 < turns <= len(own) else len(messages)
        parts: list[tuple[str, str]] = []
        for message in messages if prompt else messages[first:]:
            if message.role == "tool" and not tool_output:
                continue
            if thinking and message.reasoning:
                parts.append(("thinking", message.reasoning))
            if message.content.strip() or message.role != "assistant":
                parts.append((message.role, message.content))
            for call in message.tool_calls if calls else ():
                arguments = json.dumps(call.arguments, ensure_ascii=False, default=str)
                parts.append(("call", f"{call.name} {arguments}"))
        return "\n".join(f"{heading}:\n{_indented(text)}" for heading, text in parts)

    @property
    def calls(self) -> tuple[CallRecord, ...]:
        return tuple(record for turn in self.turns for record in turn.calls)

    @property
    def sampled_tokens(self) -> int:
        """Of all trajectories."""
        return sum(
            sum(it.loss_mask) if it.ids else sum(turn.sampled_tokens for turn in it.turns) for it in self.trajectories
        )

    @property
    def correct(self) -> float | None:
        """1.0 or 0.0 where a reward judged the answer, else None."""
        return self.metrics.get("correct")


@dataclass(frozen=True, slots=True)
class Group:
    """The episodes of one task, which are compared with each other."""

    id: str
    task: Task
    episodes: tuple[Episode, ...]

    @property
    def scored(self) -> Sequence[Episode]:
        """The episodes that ended without a failure: only these enter the group's mean."""
        return [episode for episode in self.episodes if episode.failure is None]
