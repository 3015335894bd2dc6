"""What happens around every call, the same for all tools.

`CallPolicy.answer` takes a call through these steps, from the outside in:

    answer    errors become text for the model, long texts are cut
              arguments are checked against the schema
    attempt   the cache of pure tools
              retries
    _once     the circuit breaker, asked before the call queues and again after
              a permit and a free process
              the time limit
              the tool

Those from the cache inwards are there only where the config asks for them; the time limit always is. `_once` runs for
each attempt: no permit is held between retries. A call's time begins when it has its permit.

Errors travel as exceptions up to `answer`, so that a retry or a breaker sees them. A policy is built once for a toolset
and shared by all its episodes; what belongs to one call is in the `Invocation`. How many calls an episode may make is
counted before, in the order of the calls: `CallBudget`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace

from toolrl.config.tool_policy import DEFAULT_TIMEOUT, PolicyOptions
from toolrl.errors import ConfigError, ToolError, ToolLimitError, ToolTimeoutError
from toolrl.tools.breaker import CircuitBreaker
from toolrl.tools.cancellation import TooLateError, Watch
from toolrl.tools.endpoints import Endpoints
from toolrl.tools.invocation import Invocation, ToolFailure, call_tool
from toolrl.tools.loop_watch import run_stoppable
from toolrl.tools.process_tools import PROCESSES
from toolrl.tools.rate_limits import Permit
from toolrl.tools.retry import with_retries
from toolrl.tools.subprocess_pool import ProcessCrashError
from toolrl.tools.threads import collecting_jobs
from toolrl.tools.traits import ToolTraits
from toolrl.tools.truncate import Cut
from toolrl.tools.validation import check_arguments
from toolrl.tracebacks import format_error, message_of
from toolrl.types import ToolResult

LONGEST_MESSAGE = 20_000
"""Characters of a crash's message that are kept: it goes to the model, to the log, and lives as long as its episode."""

__all__ = ["CallBudget", "CallPolicy", "Invocation", "PolicyOptions", "ToolFailure"]


class CallPolicy:
    """What surrounds the calls of one toolset."""

    def __init__(
        self, options: PolicyOptions, cut: Cut | None = None, *, name: str = "tool", endpoints: Endpoints | None = None
    ) -> None:
        """`name` is the toolset's: the endpoint of tools that name none. `endpoints` holds what is shared with other
        toolsets. Raises ConfigError."""
        self.options = options
        self._name = name
        self._endpoints = endpoints if endpoints is not None else Endpoints()
        self._cache = Cache(options.cache) if options.cache is not None else None
        self._cut = cut
        if cut is None and options.max_output_tokens and {"max_output_tokens", "truncate"} & options.model_fields_set:
            raise ConfigError("policy.max_output_tokens needs a chat format that counts tokens, and none was handed in")

    def endpoint(self, traits: ToolTraits) -> str:
        """What a tool's breaker and limits are kept under."""
        return traits.endpoint or self._name

    async def prepare(self, traits: Mapping[str, ToolTraits]) -> None:
        """Get ready for calls of these tools. Raises ConfigError where an option asks for something else than another
        toolset does under the same name."""
        for endpoint in {self.endpoint(it) for it in traits.values()}:
            self._breaker(endpoint)
            if self.options.limited:
                await self._endpoints.limiter(endpoint, self.options)

    # The way of a call.

    async def answer(self, call: Invocation) -> ToolResult:
        """All steps. Never raises anything but a cancellation of the episode; crashes are added to `call.failures`."""
        watch = Watch()
        try:
            if self.options.check_arguments:
                await check_arguments(call.spec, call.call.arguments, call.shown)
            result = await self.attempt(call)
        except ToolError as error:
            text = _text(error.message or error) or f"The tool {call.shown!r} failed and didn't say why."
            result = ToolResult(call.hide(text), error=str(error.kind))
        except BaseException as error:  # whatever a tool raises is data
            if not watch.failed(error):
                raise
            result = _crash(call, error)
        if watch.cancelled:
            # The tool swallowed the cancellation of its episode.
            raise asyncio.CancelledError
        return self._shortened(result)

    async def attempt(self, call: Invocation) -> ToolResult:
        """The steps from the cache inwards, which raise what the tool raises."""
        if self._cache is None:
            return await self._retried(call)

        async def run() -> ToolResult:
            # What is kept is what is sent: a huge result isn't held in memory.
            return self._shortened(await self._retried(call))

        return await self._cache.answer(call, run)

    async def _retried(self, call: Invocation) -> ToolResult:
        if self.options.retry is None:
            return await self._once(call)
        return await with_retries(self.options.retry, call, self._once)

    async def _once(self, call: Invocation) -> ToolResult:
        breaker = self._breaker(call.endpoint)
        if breaker is not None:
            breaker.check(call.shown)
        async with self._turn(call):
            with breaker.watch(call.shown) if breaker is not None else nullcontext():
                return await self._in_time(call)

    def _breaker(self, endpoint: str) -> CircuitBreaker | None:
        options = self.options.breaker
        return self._endpoints.breaker(endpoint, options) if options is not None else None

    @asynccontextmanager
    async def _turn(self, call: Invocation) -> AsyncIterator[None]:
        """Waits for a permit of the endpoint, and for a free process where the tool runs in one."""
        if not self.options.limited and call.traits.process is None:
            yield
            return
        async with AsyncExitStack() as stack:
            clock = asyncio.get_running_loop().time
            begin, limit = clock(), asyncio.timeout(self.options.queue_timeout)
            try:
                async with limit:
                    if self.options.limited:
                        await stack.enter_async_context(self._permit(call))
                    if call.traits.process is not None:
                        await stack.enter_async_context(PROCESSES.reserve(call.traits.process))
            except TimeoutError:
                if not limit.expired():
                    raise
                raise ToolLimitError(
                    f"The tool {call.shown!r} is busy: there was no place for this call within "
                    f"{self.options.queue_timeout:g} s, and it didn't run. Go on without it, or try again later."
                ) from None
            finally:
                call.note("queue_seconds", clock() - begin)
            yield

    @asynccontextmanager
    async def _permit(self, call: Invocation) -> AsyncIterator[None]:
        """A permit is held as long as the endpoint may be busy with the call. Where a call was given up and its thread
        runs on, that is until the thread ends, and no longer than the lease."""
        limiter = await self._endpoints.limiter(call.endpoint, self.options)
        call.strays = []
        with collecting_jobs() as call.jobs:
            permit = await limiter.acquire()
            try:
                yield
            finally:
                _leave(permit, call, self.options.limit_lease)

    async def _in_time(self, call: Invocation) -> ToolResult:
        """The tool's answer. A call that takes too long is stopped; one that doesn't end then is left to itself, as a
        stray."""
        seconds = self.options.timeout or call.traits.timeout or DEFAULT_TIMEOUT
        name = f"tool {call.shown!r}"
        try:
            return await run_stoppable(name, call_tool, call, seconds=seconds, left=call.strays.append)
        except TooLateError:
            raise ToolTimeoutError(
                f"The tool {call.shown!r} gave no answer within {seconds:g} s and was stopped."
            ) from None

    def _shortened(self, result: ToolResult) -> ToolResult:
        """Long texts are cut, those of errors too."""
        if self._cut is None or self.options.max_output_tokens is None:
            return result
        text, was_cut = self._cut(result.text, self.options.max_output_tokens, self.options.truncate)
        return replace(result, text=text, truncated=True) if was_cut else result


class Cache:
    """Answers of pure tools, kept for equal calls of all episodes: up to `size` that are no errors and don't end their
    episode. The least recently used one is dropped first. Equal calls at once run once: the others wait for the first,
    and where that one is cancelled the next takes its place."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[bytes, ToolResult] = OrderedDict()
        self._running: dict[bytes, asyncio.Future[ToolResult]] = {}

    async def answer(self, call: Invocation, run: Callable[[], Awaitable[ToolResult]]) -> ToolResult:
        """The answer to an equal call, or that of `run`. Raises what `run` raises."""
        key = _key(call)
        if key is None:
            return await run()
        while (running := self._running.get(key)) is not None:
            await asyncio.wait((running,))
            if not running.cancelled():
                call.note("cache_hits")
                return running.result()
        if key in self._kept:
            self._kept.move_to_end(key)
            call.note("cache_hits")
            return self._kept[key]
        call.note("cache_hits", 0)
        return await self._run(key, run)

    async def _run(self, key: bytes, run: Callable[[], Awaitable[ToolResult]]) -> ToolResult:
        running = self._running[key] = asyncio.get_running_loop().create_future()
        try:
            result = await run()
            running.set_result(result)
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            running.cancel()
            raise
        except BaseException as error:
            running.set_exception(error)
            running.exception()  # Retrieved: there may be no other caller.
            raise
        finally:
            del self._running[key]
        if result.error is None and not result.done:
            self._kept[key] = result
            if len(self._kept) > self._size:
                self._kept.popitem(last=False)
        return result


def _key(invocation: Invocation) -> bytes | None:
    """The same for calls that have the same answer; None for those that have to run."""
    traits = invocation.traits
    if not traits.pure or traits.per_episode:
        return None
    given = [invocation.kwargs.get(f"{stage}_kwargs") for stage in ("create", "execute")]
    try:
        text = json.dumps([invocation.call.name, invocation.call.arguments, given], sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return None
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


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
                f"{self._subject} can be called {self._per_episode} times, which happened already. This call didn't "
                "run, and further ones won't. Go on with what you have."
            )
            return ToolResult(text, error="too_many_calls")
        if self._per_turn is not None and self._in_turn >= self._per_turn:
            text = (
                f"{self._subject} can be called {self._per_turn} times in one turn. This call didn't run: make it "
                "again in your next turn if you still need it."
            )
            return ToolResult(text, error="too_many_calls")
        self._in_episode += 1
        self._in_turn += 1
        return None


def _leave(permit: Permit, call: Invocation, lease: float) -> None:
    """Release a permit when all that was begun under it has ended, at the latest after the lease."""
    jobs = [job for job in call.jobs if not job.ended]
    strays = [task for task in call.strays if not task.done()]
    waiting = len(jobs) + len(strays)
    if not waiting:
        permit.release()
        return
    permit.lease(lease)

    def ended(*_: object) -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            permit.release()

    for job in jobs:
        job.when_ended(ended)
    for task in strays:
        task.add_done_callback(ended)


def _crash(call: Invocation, error: BaseException) -> ToolResult:
    text = _text(error, message_of)
    message = text if isinstance(error, ProcessCrashError) else f"{type(error).__name__}: {text}"
    if isinstance(error, ProcessCrashError) and (notes := getattr(error, "__notes__", [])):
        trace = notes[0]  # The traceback in the process.
    else:
        trace = format_error(error)
    call.failures.append(ToolFailure(call.shown, message, trace))
    return ToolResult(f"The tool {call.shown!r} crashed: {call.hide(message)}", error="crash")


def _text(error: object, read: Callable[[object], str] = str) -> str:
    try:
        text = read(error)
    except Exception:  # noqa: BLE001 - an exception of a tool's own may fail at this, too
        return "(it can't be shown)"
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]} …"
