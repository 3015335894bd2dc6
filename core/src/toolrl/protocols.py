"""What a component of each kind must do.

A component's target is called as `target(options, context)`: `options` is an instance of the component's options model
(None where it has none), `context` is a `BuildContext`. What it returns must follow the protocol of its kind. Protocols
are structural: nothing has to be inherited. All coroutines run on one event loop a process; an object here is never
used from two threads at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from toolrl.agent_protocols import ChatEngine as ChatEngine
from toolrl.agent_protocols import EpisodeContext as EpisodeContext
from toolrl.agent_protocols import Harness as Harness
from toolrl.agent_protocols import Model as Model
from toolrl.agent_protocols import Outcome as Outcome
from toolrl.agent_protocols import RewritesHistory as RewritesHistory
from toolrl.training_protocols import AdvantageEstimator as AdvantageEstimator
from toolrl.training_protocols import Cluster as Cluster
from toolrl.training_protocols import Credit as Credit
from toolrl.training_protocols import LossTerms as LossTerms
from toolrl.training_protocols import PolicyLoss as PolicyLoss
from toolrl.training_protocols import RunInfo as RunInfo
from toolrl.training_protocols import StepReport as StepReport
from toolrl.training_protocols import TrainedModel as TrainedModel
from toolrl.training_protocols import TrainerBackend as TrainerBackend
from toolrl.training_protocols import WeightSource as WeightSource
from toolrl.types import (
    CallRecord,
    Decoded,
    Episode,
    Generation,
    MediaInput,
    Message,
    ParsedTurn,
    Rendered,
    Sampling,
    Score,
    Task,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)


@dataclass(frozen=True)
class BuildContext:
    """What a component may need when it is built, and no more. Fields that don't apply to its kind are None."""

    name: str
    """The name that the config gave."""
    where: str = ""
    """The YAML path of the component, for messages."""
    seed: int = 0
    """The run's."""
    device: str = "cpu"
    """Where the model is: cpu, cuda or cuda:N."""
    run_dir: Path | None = None
    """The run's folder."""
    tokenizer: Any = None
    """A transformers tokenizer, as loaded from the model's folder."""
    processor: Any = None
    """A transformers processor where the model takes images, else None."""
    chat_format: ChatFormat | None = None
    """For tools and harnesses: that of their environment."""
    weights: WeightSource | None = None
    """For engines."""
    dtype: Any = None
    """For engines: the torch dtype the run computes in."""
    overlap: bool = False
    """For engines: whether they sample while the weights are trained, and so need weights of their own."""
    deterministic: bool = False
    """For engines and harnesses: whether each sample must follow from its seed alone."""
    restarted: Callable[[], None] = lambda: None
    """For tools: to be called when a server that died, or a connection that broke, works again; metrics count it."""
    shared_limit: Callable[[str, int], Awaitable[Any]] | None = None
    """For tools: gives a `toolrl.tools.rate_limits.Limiter` with so many permits, under a name that all processes of
    the run share. Raises ConfigError where the name is in use with another number. None for a tool that is alone."""


class ToolParser(Protocol):
    """Text to calls. Pure, total (never raises) and linear in the text's length. One that inherits from it needs to
    have `parse` alone."""

    def stops(self, turn_text: str) -> Sequence[str]:
        """What ends generation now, given the turn's text so far; asked before every generate. By default nothing: a
        turn ends with the model's end marks, and may hold several calls."""
        return ()

    def parse(
        self,
        text: str,
        *,
        tools: Sequence[ToolSpec],
        finish: Literal["stop", "length", "abort"] = "stop",
        stopped_by: str | None = None,
        prefilled_thinking: bool = False,
    ) -> ParsedTurn:
        """Read a turn. `stopped_by` is the stop string that ended it; `prefilled_thinking` says that the prompt ended
        inside an opened thinking block."""
        ...

    def render_results(self, records: Sequence[CallRecord]) -> Sequence[Message] | str:
        """The answers to a turn's items, in order: tool messages, as by default, or text that stands inside the same
        turn."""
        return tool_messages(records)


def tool_messages(records: Sequence[CallRecord]) -> list[Message]:
    """One message of role `tool` for each item, calls and errors alike, in order."""
    return [
        Message(
            "tool", record.result.text, media=record.result.media, tool_call_id=record.call.id, name=record.call.name
        )
        for record in records
    ]


@runtime_checkable
class ReadsTokens(Protocol):
    """What a parser may give besides: reading the sampled ids themselves. A rollout then asks this instead of `parse`,
    so that a control token and a text that merely spells it are two things. `parse` stays, for texts without ids."""

    def parse_ids(
        self,
        ids: Sequence[int],
        decoded: Decoded,
        *,
        tools: Sequence[ToolSpec],
        finish: Literal["stop", "length", "abort"] = "stop",
        stopped_by: str | None = None,
        prompt_in_thinking: bool = False,
    ) -> ParsedTurn:
        """Read a turn, as `parse` does. `ids` are all that was sampled in it, the end mark included; `decoded` is their
        text with the character at which each token starts. Spans are characters of `decoded.text`."""
        ...


@runtime_checkable
class StopsByTools(Protocol):
    """What a parser may give besides: stops that depend on the tools. A rollout then asks this instead of `stops`."""

    def stops_for(self, turn_text: str, tools: Sequence[ToolSpec]) -> Sequence[str]:
        """What ends generation now, given the turn's text so far and the episode's tools."""
        ...


class ChatFormat(Protocol):
    """Messages to token ids and back; the one owner of the tokenizer. Stateless: safe to share between episodes."""

    end_ids: Sequence[int]
    """Token ids that end an assistant turn; the engine stops on them."""

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        """The prompt of the first turn, generation prompt included."""
        ...

    def bridge(self, sampled_ids: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        """What follows a sampled turn: the end mark where `sampled_ids` lacks it, `messages`, the generation prompt."""
        ...

    def say(self, message: Message) -> tuple[int, ...]:
        """The ids that a model would sample to say this assistant message, end mark included; for demonstrations."""
        ...

    def inline(self, text: str) -> tuple[int, ...]:
        """Ids of a text that stands inside a turn, special tokens read as plain text."""
        ...

    def decode(self, ids: Sequence[int]) -> Decoded:
        """Text of sampled ids, a closing end mark left out."""
        ...

    def token_count(self, text: str) -> int:
        """How many tokens `inline(text)` has."""
        ...


@runtime_checkable
class ChecksTools(Protocol):
    """What a chat format may give besides: a look at its own abilities before a run."""

    def check(self, tools: Sequence[ToolSpec]) -> Sequence[str]:
        """Try a conversation with these tools. Raises ChatFormatError that names the cause and the way out; returns
        remarks that the user should read."""
        ...


class ToolSession(Protocol):
    """The tools of one episode. A session that is an environment also has the methods of `EnvironmentSession`."""

    def specs(self) -> Sequence[ToolSpec]:
        """The tools as the model sees them; may differ by task, must not change within the episode."""
        ...

    async def call(self, call: ToolCall) -> ToolResult:
        """Answer one call. Calls of one turn arrive concurrently. Raise `ToolError` for an error the model should read;
        anything else counts as a crash of the tool."""
        ...

    async def reward(self) -> float | None:
        """Asked once, after the last turn and before the session closes. None by default."""
        return None


@dataclass(frozen=True, slots=True)
class Reply:
    """An environment's answer to a turn without a call."""

    messages: tuple[Message, ...]
    reward: float | None = None
    done: bool = False


@runtime_checkable
class EnvironmentSession(Protocol):
    """What a tool session may give besides: a say in the conversation."""

    async def opening(self) -> Sequence[Message]:
        """Messages before the first turn: an observation, or what a tool's create returned."""
        ...

    async def respond(self, turn: Turn) -> Reply | None:
        """To a turn without a call: a simulated user, a text game. None ends the episode as usual."""
        ...


class Toolset(Protocol):
    """One tool or many (an MCP server is many); one object a process, shared by all its episodes."""

    async def start(self) -> None:
        """Once, before the first episode. Nothing happens by default."""
        return

    def open(self, task: Task, episode: EpisodeContext) -> AbstractAsyncContextManager[ToolSession]:
        """Once an episode. Leaving it releases what the episode holds, on every path.

        Where sessions are few, the manager may have `async def wait_turn(self)`: it is awaited first, and unlike what
        follows has no time limit but its own. If `__aenter__` then raises, it releases what `wait_turn` took.
        """
        ...

    async def stop(self) -> None:
        """Once, after the last episode; also when start failed half-way. Nothing happens by default."""
        return


class Reward(Protocol):
    """Scores a finished episode.

    `score` may also be a plain function, without `async`: it then runs in a thread, one call at a time, and may compute
    or wait as long as it likes. Whatever it raises fails the episode.
    """

    async def score(self, episode: Episode) -> Score: ...


@runtime_checkable
class ScoresGroups(Protocol):
    """What a reward may give instead of `score`: a look at all episodes of a task together, to compare them or to send
    them to a model as one batch."""

    async def score_group(self, episodes: Sequence[Episode]) -> Sequence[Score | Exception]:
        """A score for each episode, in order. Asked once, when the last episode of the group has ended, with those that
        didn't fail: at least one. An exception in the place of a score fails that episode alone, one that is raised all
        of them. May be a plain function, as `Reward.score` may."""
        ...


@runtime_checkable
class ChecksTasks(Protocol):
    """A reward's options may tell which tasks it can't score, before anything is built or started; so may a reward that
    is given as a Python object. `toolrl config check --data` asks for all rows, the start of a run for the first.
    """

    def check_task(self, task: Task) -> None:
        """Raises DataError or RewardError for a task of which no episode can be scored: one whose answer is missing, or
        can't be read. Should take less than a millisecond."""
        ...


@runtime_checkable
class StartsAndStops(Protocol):
    """What a reward may give besides, where it keeps processes or connections for the whole run."""

    async def start(self) -> None:
        """Once, before the first episode."""
        ...

    async def stop(self) -> None:
        """Once, after the last episode; also when start failed half-way."""
        ...


class RolloutEngine(Protocol):
    """Tokens in, tokens out."""

    async def start(self) -> None: ...

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, *, session: str, media: Sequence[Any] = ()
    ) -> Generation:
        """Sample after `prompt`. Prompts of one session extend each other, so its cache can be kept. Cancelling the
        coroutine frees its place. An engine that can keep `Sampling.keep_masks` has options with a method
        `sampling_problem(rollout)`, which gives the reason why it can't with these settings, or None."""
        ...

    async def close(self, session: str) -> None:
        """Forget a session's cache. Unknown sessions are fine."""
        ...

    async def update_weights(self, weights: WeightSource, version: int) -> None:
        """Sample from these weights from now on; returns when no token comes from older ones any more."""
        ...

    async def stop(self) -> None: ...


@runtime_checkable
class HoldsStill(Protocol):
    """What an engine may give besides: standing still between two of its steps. A run with `deterministic: true` needs
    it, and that what is sampled depends on nothing but the requests, their order and the weights."""

    def hold(self) -> AbstractAsyncContextManager[None]:
        """While this is held nothing is sampled; requests wait, and are looked at together when it ends."""
        ...


@runtime_checkable
class ScoresTokens(Protocol):
    """What an engine may give besides: the log-probabilities of given tokens. A teacher of distillation needs it, and
    `scores_tokens = True` as a class variable of its options, which is what `toolrl config check` sees. An engine
    whose model is elsewhere may have `async tokenize(text)` too: ids by that model's tokenizer, None where unknown; and
    `most_scored`, the tokens of the longest text, once it is started."""

    async def score(
        self, ids: Sequence[int], start: int, *, temperature: float = 1.0, media: Sequence[MediaInput] = ()
    ) -> Sequence[float]:
        """Natural log-probability under softmax(logits / temperature) of each of `ids[start:]`, given the ids before
        it; `start` is at least 1. Raises EngineError."""
        ...


@runtime_checkable
class Rests(Protocol):
    """What an engine may give besides: doing without memory that the trainer can use while nothing is sampled."""

    async def rest(self) -> None:
        """Give memory back until the next `update_weights`, which ends the rest. Asked before each update of a run
        whose rollout and training take turns; an engine that isn't set to rest does nothing."""
        ...


class TaskSource(Protocol):
    """A data set. Rows are found by index, so that a run can be resumed and data dealt to several workers."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Task: ...


@runtime_checkable
class HasDigest(Protocol):
    """Data sets may give a digest of their rows. Checkpoints keep it, and a resumed run remarks on other data."""

    def digest(self) -> str | None:
        """The same for the same rows, also in another process and folder; None if unknown. Asked once, at the start: it
        should take a second at most."""
        ...


class Observer(Protocol):
    """An object with one or more of the event methods of `toolrl.hookspecs`: `toolrl_step_end(self, run, report)` …

    They are found by name and need no `@hookimpl`; each takes as many of its event's arguments as it wants. A method
    whose name begins with `toolrl_` and is no event, and an `async def`, are refused when the run starts.
    """


class Command(Protocol):
    """A plugin's own command: `toolrl <plugin> <verb>`; the component's name is the verb. Its attribute `example`,
    where it has one, is shown by `--help`."""

    def __init__(self, options: Any = None, context: BuildContext | None = None) -> None:
        """A command has no options: what it needs are its arguments."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add arguments."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Do it; the exit status."""
        ...


def iterate(source: TaskSource) -> Iterator[Task]:
    """All tasks of a source in order."""
    for index in range(len(source)):
        yield source[index]
