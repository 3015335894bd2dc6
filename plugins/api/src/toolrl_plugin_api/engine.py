"""The engine `chat`: asks an OpenAI-compatible endpoint, under the policy that calls of tools have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from toolrl.config.tool_policy import PolicyOptions
from toolrl.errors import EngineError, RunStoppedError, ToolError, ToolLimitError, ToolTimeoutError
from toolrl.protocols import BuildContext
from toolrl.tools.endpoints import Endpoints
from toolrl.tools.invocation import Invocation
from toolrl.tools.policy import CallPolicy
from toolrl.tools.traits import ToolTraits
from toolrl.types import Message, Sampling, ToolCall, ToolResult, ToolSpec
from toolrl_common.chat_api import ChatClient
from toolrl_common.http_client import without_secrets
from toolrl_plugin_api.conversation import ChatAnswer, ChatRun
from toolrl_plugin_api.messages import (
    as_json,
    read_calls,
    read_finish,
    read_reasoning,
    read_text,
    with_tools_as_text,
)
from toolrl_plugin_api.options import ChatOptions

MAX_BYTES = 32 << 20
_SPEC, _TRAITS = ToolSpec("chat", ""), ToolTraits(pure=True)
_WEEK = 7 * 24 * 3600.0
"""A request waits for its turn as long as others are answered: each of these has a time limit."""
_CONTEXT = ("context_length_exceeded", "maximum context length", "context window", "prompt is too long")
_MOST_TOKENS = 1e12
"""Of one answer. More isn't counted, as what is no number isn't."""
_FILTER = ("content_filter", "content_policy_violation")


class _RefusedError(ToolError):
    """A request that the API refuses each time."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _Client(ChatClient):
    service: ClassVar[str] = "API"
    error = ToolError

    def _refused(self, response: Any, content: bytes) -> Exception:
        error = super()._refused(response, content)
        if isinstance(error, self.misconfigured):
            return _RefusedError(str(error.message), response.status)
        return error


class ApiEngine:
    """A `toolrl.protocols.ChatEngine`."""

    def __init__(self, options: ChatOptions, context: BuildContext) -> None:
        self._options = options
        self._client = _Client(options, max_bytes=MAX_BYTES)
        self._address = without_secrets(self._client.url)
        policy = PolicyOptions(
            timeout=options.timeout,
            retry=options.retry,
            concurrency=options.concurrency,
            rate=options.rate,
            queue_timeout=_WEEK,
        )
        self._policy = CallPolicy(policy, name=self._address, endpoints=Endpoints())
        self._answered = False

    async def start(self) -> None:
        """Open the pool of connections."""
        await self._policy.prepare({_SPEC.name: _TRAITS})
        await self._client.__aenter__()

    async def stop(self) -> None:
        """Close it."""
        await self._client.__aexit__()

    async def close(self, session: str) -> None:
        """Nothing is kept for a session."""

    def trajectory(self, environment: Any, *more: Any) -> ChatRun:
        """An empty conversation."""
        return ChatRun(environment, self, *more)

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling, *, session: str
    ) -> ChatAnswer:
        """The answer to these messages. Raises EngineError where there is none, RunStoppedError where the address, the
        key or the form of all requests is wrong."""
        request = _Request(self._client, self._body(messages, tools, sampling))
        call = ToolCall(_SPEC.name, {}, id=session)
        shared: Any = {"shown": "API", "spec": _SPEC, "traits": _TRAITS, "endpoint": self._address}
        invocation = Invocation(call, session=request, episode=session, **shared)  # type: ignore[arg-type]  # only `call` is asked
        try:
            await self._policy.attempt(invocation)
        except _RefusedError as error:
            return self._refused(error)
        except (ToolTimeoutError, ToolLimitError) as error:
            tries = int(invocation.effort.get("retries", 0)) + 1
            text = f"the API gave no answer within {self._options.timeout:g} s, asked {tries} times"
            raise EngineError(text, where=self._address, hint="Raise engine.options.timeout or retry.") from error
        except ToolError as error:
            raise EngineError(error.message, where=self._address) from error
        self._answered = True
        return self._read(*request.answer, retries=invocation.effort.get("retries", 0.0))

    def _body(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> dict[str, Any]:
        options, native = self._options, self._options.tools == "native"
        given = messages if native else with_tools_as_text(messages, tools, options.tool_prompt)
        body = {
            "model": options.model,
            "messages": as_json(given, options.send_reasoning),
            "tools": [it.as_function() for it in tools] if native else None,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p if sampling.top_p < 1 else None,
            "top_k": sampling.top_k or None,
            "min_p": sampling.min_p or None,
            options.max_tokens_field: sampling.max_new_tokens,
            "stop": list(sampling.stop),
        }
        kept = {key: value for key, value in body.items() if value not in (None, []) and key not in options.omit}
        return {**kept, **options.extra}

    def _read(self, answer: Mapping[str, Any], choice: Mapping[str, Any], *, retries: float) -> ChatAnswer:
        message, finish = choice["message"], read_finish(choice)
        return ChatAnswer(
            read_text(message),
            read_calls(message, finish) if self._options.tools == "native" else (),
            read_reasoning(message),
            finish,
            {"requests": 1.0, "retries": retries, **self._usage(answer.get("usage"))},
        )

    def _usage(self, usage: Any) -> dict[str, float]:
        """Counts of an answer under their names in metrics; those that the API doesn't give are left out."""
        places = {
            "prompt_tokens": ("prompt_tokens",),
            "cached_tokens": ("prompt_tokens_details", "cached_tokens"),
            "completion_tokens": ("completion_tokens",),
            "reasoning_tokens": ("completion_tokens_details", "reasoning_tokens"),
        }
        found = {name: number for name, path in places.items() if (number := _number(usage, path)) is not None}
        prompt, completion = found.get("prompt_tokens"), found.get("completion_tokens")
        if prompt is not None and completion is not None:
            cost = self._options.cost(prompt, found.get("cached_tokens", 0.0), completion)
            found |= {"cost": cost} if cost is not None else {}
        return found

    def _refused(self, error: _RefusedError) -> ChatAnswer:
        """An answer where the refusal is about these messages. Raises EngineError, RunStoppedError."""
        text = error.message.lower()
        usage = {"requests": 1.0}
        if error.status in (400, 413, 422):
            if any(mark in text for mark in _CONTEXT):
                return ChatAnswer(finish="context_full", usage=usage)
            if any(mark in text for mark in _FILTER):
                return ChatAnswer(finish="abort", usage=usage)
            if self._answered:  # Others were right, so it is this episode's.
                raise EngineError(error.message, where=self._address) from error
        raise RunStoppedError(
            error.message,
            where=self._address,
            hint="Correct engine.options: base_url, api_key, model, or the field that the answer names (`omit` leaves "
            "one out).",
        ) from error


class _Request:
    """What the policy calls: the request, and in the end its answer."""

    answer: tuple[Mapping[str, Any], Mapping[str, Any]]

    def __init__(self, client: ChatClient, body: Mapping[str, Any]) -> None:
        self._client = client
        self._body = body

    async def call(self, call: ToolCall) -> ToolResult:
        self.answer = await self._client.complete(self._body)
        return ToolResult("")


def _number(usage: Any, path: Sequence[str]) -> float | None:
    for part in path:
        usage = usage.get(part) if isinstance(usage, Mapping) else None
    sound = isinstance(usage, int | float) and not isinstance(usage, bool) and 0 <= usage < _MOST_TOKENS
    return float(usage) if sound else None
