"""What happens around every call, the same for all tools.

A call goes through layers, each of which may answer itself, raise, or go on to the next:

    truncate → answer errors → validate → cache → retry → breaker → wait for a permit → breaker → time limit → the tool

Those behind `validate` are there only where the config asks for them; the time limit always is. What stands inside of
`retry` is done for each attempt: no permit is held between retries. The breaker is asked before a call queues, and
again after, as it may have opened meanwhile. A call's time begins when it has its permit.

Errors travel as exceptions through the inner layers, so that one of them can try again, and become the model's text in
`answer_errors`. A layer is built once for a toolset and shared by all its episodes: what it remembers is for the
process, what belongs to one call is in the `Invocation`. How many calls an episode may make is counted before the
layers, in the order of the calls: `CallBudget`.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Mapping
from dataclasses import replace

from toolrl.config.tool_policy import PolicyOptions
from toolrl.errors import ConfigError, ToolError
from toolrl.tools.breaker import CircuitBreaker
from toolrl.tools.cache import Cache
from toolrl.tools.cancellation import Watch
from toolrl.tools.endpoints import Endpoints
from toolrl.tools.invocation import Invocation, Layer, Next, ToolFailure, call_tool, compose
from toolrl.tools.limit_layer import Limited
from toolrl.tools.retry import Retry
from toolrl.tools.subprocess_pool import ProcessCrashError
from toolrl.tools.time_limit import TimeLimit
from toolrl.tools.traits import ToolTraits
from toolrl.tools.truncate import Cut, Side
from toolrl.tools.validation import check_arguments
from toolrl.tracebacks import format_error, from_author
from toolrl.types import ToolResult

LONGEST_MESSAGE = 20_000
"""Characters of a crash's message that are kept: it goes to the model, to the log, and lives as long as its episode."""

__all__ = ["CallBudget", "Invocation", "Next", "Policy", "PolicyOptions", "ToolFailure"]


class Policy:
    """The layers of one toolset."""

    def __init__(
        self, options: PolicyOptions, cut: Cut | None = None, *, name: str = "tool", endpoints: Endpoints | None = None
    ) -> None:
        """`name` is the toolset's: the endpoint of tools that name none. `endpoints` holds what is shared with other
        toolsets. Raises ConfigError."""
        self.options = options
        self._name = name
        self._endpoints = endpoints if endpoints is not None else Endpoints()
        shorten = self._truncate(cut)
        self.attempt: Next = compose(self._inner_layers(shorten), call_tool)
        """The layers behind `validate`, which raise what the tool raises."""
        outer: list[Layer] = [shorten] if shorten is not None else []
        outer.append(answer_errors)
        if options.check_arguments:
            outer.append(validate)
        self.answer: Next = compose(outer, self.attempt)
        """All layers. Never raises anything but a cancellation of the episode."""

    def endpoint(self, traits: ToolTraits) -> str:
        """What a tool's breaker and limits are kept under."""
        return traits.endpoint or self._name

    async def prepare(self, traits: Mapping[str, ToolTraits]) -> None:
        """Get ready for calls of these tools. Raises ConfigError where an option does nothing for any of them, or asks
        for something else than another toolset does under the same name."""
        retry = self.options.retry
        if self.options.cache is not None:
            self._check_use("cache", traits, [it.pure and not it.per_episode for it in traits.values()])
        if retry is not None and retry.on_timeout:
            self._check_use("retry.on_timeout", traits, [it.repeatable for it in traits.values()])
        for endpoint in {self.endpoint(it) for it in traits.values()}:
            if self.options.breaker is not None:
                self._endpoints.breaker(endpoint, self.options.breaker)
            if self.options.limited:
                await self._endpoints.limiter(endpoint, self.options)

    def _check_use(self, option: str, traits: Mapping[str, ToolTraits], usable: list[bool]) -> None:
        if usable and not any(usable):
            raise ConfigError(
                f"policy.{option}: {', '.join(map(repr, traits))} can't use it: {_NEEDS[option]}",
                where=self._name,
                hint="Leave the option out.",
            )

    def _inner_layers(self, shorten: Truncate | None) -> list[Layer]:
        options = self.options
        layers: list[Layer] = []
        if options.cache is not None:
            layers.append(Cache(options.cache))
            if shorten is not None:
                layers.append(shorten)  # What is kept is what is sent: a huge result isn't held in memory.
        if options.retry is not None:
            layers.append(Retry(options.retry))
        if options.breaker is not None:
            layers.append(self._check_breaker)
        layers.append(Limited(self._endpoints, options))
        if options.breaker is not None:
            layers.append(self._watch_breaker)
        layers.append(TimeLimit(options.timeout))
        return layers

    async def _check_breaker(self, invocation: Invocation, following: Next) -> ToolResult:
        self._breaker(invocation).check(invocation.shown)
        return await following(invocation)

    async def _watch_breaker(self, invocation: Invocation, following: Next) -> ToolResult:
        with self._breaker(invocation).watch(invocation.shown):
            return await following(invocation)

    def _breaker(self, invocation: Invocation) -> CircuitBreaker:
        assert self.options.breaker is not None
        return self._endpoints.breaker(invocation.endpoint, self.options.breaker)

    def _truncate(self, cut: Cut | None) -> Truncate | None:
        options = self.options
        if options.max_output_tokens is None:
            return None
        if cut is not None:
            return Truncate(cut, options.max_output_tokens, options.truncate)
        if {"max_output_tokens", "truncate"} & options.model_fields_set:
            raise ConfigError("policy.max_output_tokens needs a chat format that counts tokens, and none was handed in")
        return None


_NEEDS = {
    "cache": "only a tool that is `pure` gives the same answer again, and only one that takes no EpisodeContext gives "
    "it to other episodes",
    "retry.on_timeout": "a call that timed out may have taken effect, so only one that is `pure` or `idempotent` may "
    "be retried",
}


class CallBudget:
    """How many calls of a toolset one episode may make, and each of its turns. All its tools count together."""

    def __init__(self, options: PolicyOptions, subject: str = "This tool") -> None:
        """`subject` begins the sentence that the model reads."""
        self._subject = subject
        self._per_turn = options.max_calls_per_turn
        self._per_episode = options.max_calls_per_episode
        self._in_episode = 0
        self._in_turn = 0

    def next_turn(self) -> None:
        """A new turn begins."""
        self._in_turn = 0

    def take(self) -> ToolResult | None:
        """None for a call that may run, else the answer to one too many."""
        if self._per_episode is not None and self._in_episode >= self._per_episode:
            text = (
                f"{self._subject} can be called {_times(self._per_episode)}, which happened already. This call didn't "
                "run, and further ones won't. Go on with what you have."
            )
            return ToolResult(text, error="too_many_calls")
        if self._per_turn is not None and self._in_turn >= self._per_turn:
            text = (
                f"{self._subject} can be called {_times(self._per_turn)} in one turn. This call didn't run: make it "
                "again in your next turn if you still need it."
            )
            return ToolResult(text, error="too_many_calls")
        self._in_episode += 1
        self._in_turn += 1
        return None


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


class Truncate:
    """Cuts long texts, those of errors too."""

    def __init__(self, cut: Cut, max_tokens: int, side: Side) -> None:
        self._cut = cut
        self._max_tokens = max_tokens
        self._side = side

    async def __call__(self, invocation: Invocation, following: Next) -> ToolResult:
        result = await following(invocation)
        text, was_cut = self._cut(result.text, self._max_tokens, self._side)
        return replace(result, text=text, truncated=True) if was_cut else result


async def answer_errors(invocation: Invocation, following: Next) -> ToolResult:
    """Makes a text of every exception but a cancellation from outside. Crashes are remembered on the invocation."""
    watch = Watch()
    try:
        result = await following(invocation)
    except ToolError as error:
        text = _message(error) or f"The tool {invocation.shown!r} failed and didn't say why."
        result = ToolResult(invocation.hide(text), error=str(error.kind))
    except BaseException as error:  # whatever a tool raises is data
        if not watch.failed(error):
            raise
        result = _crash(invocation, error)
    if watch.cancelled:
        # The tool swallowed the cancellation of its episode.
        raise asyncio.CancelledError
    return result


async def validate(invocation: Invocation, following: Next) -> ToolResult:
    """Checks arguments against the schema."""
    check_arguments(invocation.spec, invocation.call.arguments, invocation.shown)
    return await following(invocation)


def _crash(invocation: Invocation, error: BaseException) -> ToolResult:
    text = _text(error)
    message = text if isinstance(error, ProcessCrashError) else f"{type(error).__name__}: {text}"
    if isinstance(error, ProcessCrashError) and (notes := getattr(error, "__notes__", [])):
        trace = notes[0]  # The traceback in the process.
    elif len(text) < LONGEST_MESSAGE:
        trace = format_error(error)
    else:
        trace = "".join(from_author(traceback.extract_tb(error.__traceback__)).format()) + message
    invocation.failures.append(ToolFailure(invocation.shown, message, trace))
    return ToolResult(f"The tool {invocation.shown!r} crashed: {invocation.hide(message)}", error="crash")


def _message(error: ToolError) -> str:
    """A tool's own subclass may do without what the base class sets, and the base class takes what isn't text."""
    said = next((it for it in (error.message, _text(error), *error.args[:1]) if it), "")
    return said if isinstance(said, str) else _text(said)


def _text(error: object) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an exception of a tool's own may fail at this, too
        return "(it can't be shown)"
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]} …"
