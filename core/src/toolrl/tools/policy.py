"""What happens around every call, the same for all tools.

A call goes through layers, each of which may answer itself, raise, or go on to the next:

    truncate → answer errors → validate arguments → time limit → the tool

Errors travel as exceptions through the inner layers, so that one of them can try again, and become the model's text in
`answer_errors`. A layer is built once for a toolset and shared by all its episodes: what it remembers is for the
process, what belongs to one call is in the `Invocation`.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from toolrl.errors import ConfigError, ToolError, ToolTimeoutError
from toolrl.protocols import ToolSession
from toolrl.tools.results import check_result
from toolrl.tools.stray import Watch
from toolrl.tools.traits import ToolTraits
from toolrl.tools.truncate import Cut, Side
from toolrl.tools.validation import Validators, check_arguments
from toolrl.types import ToolCall, ToolResult, ToolSpec

DEFAULT_TIMEOUT = 30.0


class PolicyOptions(BaseModel):
    """`policy:` of a tool in the config."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout: float | None = Field(
        None, gt=0, description=f"Seconds a call may take; None for the tool's own limit, else {DEFAULT_TIMEOUT:g}."
    )
    session_timeout: float = Field(
        120.0,
        gt=0,
        description="Seconds that opening an episode's session, its say in the conversation, its reward, and closing "
        "it may take, each.",
    )
    max_output_tokens: int | None = Field(
        1024, ge=1, description="Longer results are cut to so many tokens; None for no limit."
    )
    truncate: Literal["head", "tail", "middle"] = Field(
        "middle",
        description="What is kept of a result that is too long: `head` its beginning, `tail` its end, `middle` both, "
        "with the middle left out.",
    )
    # `validate` is a method of BaseModel, hence the other name.
    check_arguments: bool = Field(
        True, alias="validate", description="Check arguments against the tool's JSON Schema before the call."
    )


@dataclass(frozen=True, slots=True)
class ToolFailure:
    """A crash of a tool: text for the model, and this for whoever has to mend it."""

    tool: str
    message: str
    traceback: str


@dataclass(slots=True)
class Invocation:
    """One call on its way through the layers."""

    call: ToolCall
    """Under the tool's own name."""
    shown: str
    """The name that the model knows, which messages use."""
    spec: ToolSpec
    session: ToolSession
    traits: ToolTraits
    failures: list[ToolFailure] = field(default_factory=list)
    """The episode's; crashes are added."""


Next = Callable[[Invocation], Awaitable[ToolResult]]
Layer = Callable[[Invocation, Next], Awaitable[ToolResult]]


class Policy:
    """The layers of one toolset. `answer` never raises anything but a cancellation of the episode."""

    def __init__(self, options: PolicyOptions, cut: Cut | None = None) -> None:
        self.options = options
        self.answer: Next = compose(_layers(options, cut), call_tool)


def compose(layers: Sequence[Layer], last: Next) -> Next:
    """One function of several layers, the first outermost."""
    inner = last
    for layer in reversed(layers):
        inner = functools.partial(_step, layer, inner)
    return inner


def _step(layer: Layer, inner: Next, invocation: Invocation) -> Awaitable[ToolResult]:
    return layer(invocation, inner)


def _layers(options: PolicyOptions, cut: Cut | None) -> list[Layer]:
    layers: list[Layer] = [answer_errors]
    if options.max_output_tokens is not None and cut is not None:
        layers.insert(0, Truncate(cut, options.max_output_tokens, options.truncate))
    elif {"max_output_tokens", "truncate"} & options.model_fields_set and options.max_output_tokens is not None:
        raise ConfigError("policy.max_output_tokens needs a chat format that counts tokens, and none was handed in")
    if options.check_arguments:
        layers.append(Validate())
    layers.append(TimeLimit(options.timeout))
    return layers


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
        text = error.message or f"The tool {invocation.shown!r} failed and didn't say why."
        result = ToolResult(text, error=error.kind)
    except BaseException as error:  # whatever a tool raises is data
        if not watch.failed(error):
            raise
        result = _crash(invocation, error)
    if watch.cancelled:
        # The tool swallowed the cancellation of its episode.
        raise asyncio.CancelledError
    return result


class Validate:
    """Checks arguments against the schema."""

    def __init__(self) -> None:
        self._validators = Validators()

    async def __call__(self, invocation: Invocation, following: Next) -> ToolResult:
        validator = self._validators.get(invocation.spec)
        check_arguments(validator, invocation.call.arguments, invocation.spec, invocation.shown)
        return await following(invocation)


class TimeLimit:
    """Cancels a call that takes too long."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    async def __call__(self, invocation: Invocation, following: Next) -> ToolResult:
        seconds = self._seconds or invocation.traits.timeout or DEFAULT_TIMEOUT
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await following(invocation)
        except TimeoutError:
            if not limit.expired():  # The tool's own, from something that it waited for.
                raise
            raise ToolTimeoutError(
                f"The tool {invocation.shown!r} gave no answer within {seconds:g} s and was stopped."
            ) from None


async def call_tool(invocation: Invocation) -> ToolResult:
    """The call itself, with what came back checked. The tool gets arguments of its own: what it does to them must not
    change what the episode says the model wrote."""
    call = replace(invocation.call, arguments=copy.deepcopy(invocation.call.arguments))
    return check_result(await invocation.session.call(call), invocation.shown)


def _crash(invocation: Invocation, error: BaseException) -> ToolResult:
    message = f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(error))
    invocation.failures.append(ToolFailure(invocation.shown, message, trace))
    return ToolResult(f"The tool {invocation.shown!r} crashed: {message}", error="crash")
