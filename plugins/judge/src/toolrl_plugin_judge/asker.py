"""Asking the judge: equal questions at once, retries, a breaker, limits.

A question is a call of a pure tool under that tool's policy. Its arguments are the fields of the prompt, so equal ones
are asked once; the prompt with its random mark is made behind the cache. Breaker and limits are kept for each address:
rewards that ask the same one share them.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Mapping
from typing import Any, Self

from toolrl.config.tool_policy import PolicyOptions
from toolrl.errors import RewardError, ToolError
from toolrl.tools.endpoints import Endpoints
from toolrl.tools.invocation import Invocation
from toolrl.tools.policy import CallPolicy
from toolrl.tools.traits import ToolTraits
from toolrl.types import ToolCall, ToolResult, ToolSpec
from toolrl_common.chat_api import ChatClient
from toolrl_common.http_client import without_secrets
from toolrl_plugin_judge.options import JudgeOptions
from toolrl_plugin_judge.prompt import JudgePrompt, UnreadableVerdictError, read_verdict

_SPEC = ToolSpec("llm_judge", "")
_TRAITS = ToolTraits(pure=True)
_ENDPOINTS: weakref.WeakValueDictionary[asyncio.AbstractEventLoop, Endpoints] = weakref.WeakValueDictionary()
"""Breakers and limits of all that ask in one event loop; forgotten when the last of them has closed."""
MAX_BYTES = 4 << 20


class MisconfiguredError(RewardError):
    """The judge can't be asked like this, today or tomorrow."""


class JudgeAnswerError(ToolError):
    """An answer without a verdict."""

    kind = "unreadable"


class JudgeClient(ChatClient):
    """Asks one address. An address, a key or a request that can't be right is a MisconfiguredError: no episode's fault,
    and nothing that a default may hide."""

    service = "judge"
    hint = "Correct `base_url`, `api_key`, `model`, or what else the answer names."
    error = JudgeAnswerError
    misconfigured = MisconfiguredError

    async def ask(self, body: Mapping[str, Any]) -> str:
        """The judge's reply. Raises TransientToolError, JudgeAnswerError, MisconfiguredError."""
        _, choice = await self.complete(body)
        text, refusal = choice["message"].get("content"), choice["message"].get("refusal")
        if not isinstance(text, str):
            raise JudgeAnswerError(f"it said nothing: {refusal or choice.get('finish_reason')!s:.120}")
        if (finish := choice.get("finish_reason")) in ("length", "content_filter"):
            raise JudgeAnswerError(f"its reply was cut off ({finish}): {text[-120:]!r}")
        return text


class Asker:
    """Asks for one reward, inside `async with`."""

    def __init__(self, options: JudgeOptions, prompt: JudgePrompt) -> None:
        self._options = options
        self._prompt = prompt
        self._client = JudgeClient(options, max_bytes=MAX_BYTES)
        self.address = without_secrets(self._client.url)
        self._policy: CallPolicy | None = None

    async def __aenter__(self) -> Self:
        """Share breaker and limits with others that ask the same address. Raises ConfigError where they differ."""
        endpoints = _ENDPOINTS.setdefault(asyncio.get_running_loop(), Endpoints())
        names = ("timeout", "cache", "retry", "breaker", "concurrency", "rate", "queue_timeout")
        policy = PolicyOptions(**{name: getattr(self._options, name) for name in names})
        self._policy = CallPolicy(policy, name=self.address, endpoints=endpoints)
        await self._policy.prepare({_SPEC.name: _TRAITS})
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close its connections, and leave the others."""
        self._policy = None
        await self._client.__aexit__()

    async def ask(self, fields: Mapping[str, str], episode: str) -> tuple[float, dict[str, float]]:
        """A verdict, and what it took as metrics. Raises ToolError where there is none, MisconfiguredError where there
        never will be."""
        assert self._policy is not None, "it is used inside `async with`"
        invocation = Invocation(
            ToolCall("llm_judge", {"fields": dict(fields)}),
            shown="llm_judge",
            spec=_SPEC,
            session=self,  # type: ignore[arg-type]  # of a session, only `call` is asked
            traits=_TRAITS,
            endpoint=self.address,
            episode=episode,
        )
        clock = asyncio.get_running_loop().time
        begin = clock()
        result = await self._policy.attempt(invocation)
        effort = invocation.effort
        metrics = {"unreadable": 0.0, "cache_hits": float(bool(effort.get("cache_hits")))}
        if not metrics["cache_hits"]:
            metrics |= {"seconds": clock() - begin, "retries": effort.get("retries", 0.0)}
        return json.loads(result.text), metrics

    async def call(self, call: ToolCall) -> ToolResult:
        """The question itself, asked by the last layer. A reply that can't be read is an error, and isn't kept."""
        question = self._prompt.fill(call.arguments["fields"])
        reply = await self._client.ask(self._body(question))
        try:
            return ToolResult(json.dumps(read_verdict(reply, self._options)))
        except UnreadableVerdictError as error:
            raise JudgeAnswerError(f"its verdict can't be read: {error}") from None

    def _body(self, question: str) -> dict[str, Any]:
        options = self._options
        messages = [{"role": "user", "content": question}]
        if options.system is not None:
            messages.insert(0, {"role": "system", "content": options.system})
        optional = {"temperature": options.temperature, "max_tokens": options.max_tokens}
        given = {name: value for name, value in optional.items() if value is not None}
        return {"model": options.model, **given, **options.extra_body, "messages": messages}
