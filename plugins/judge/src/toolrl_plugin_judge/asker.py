"""Asking the judge: verdicts that are known already, equal questions at once, retries, a breaker, limits.

A question is a call of a pure tool under that tool's policy. Its arguments are all that decides the verdict, so equal
ones are asked once; the prompt with its random mark is made behind the cache. Breaker and limits are kept for each
address: rewards that ask the same one share them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from toolrl.config.tool_policy import PolicyOptions
from toolrl.errors import RewardError, ToolError
from toolrl.runs.files import write_atomic
from toolrl.tools.endpoints import Endpoints
from toolrl.tools.invocation import Invocation
from toolrl.tools.policy import CallPolicy
from toolrl.tools.traits import ToolTraits
from toolrl.types import ToolCall, ToolResult, ToolSpec
from toolrl_common.chat_api import ChatClient
from toolrl_common.http_client import without_secrets
from toolrl_plugin_judge.options import JudgeOptions
from toolrl_plugin_judge.prompt import JudgePrompt
from toolrl_plugin_judge.verdict import UnreadableVerdictError, read_verdict, response_format

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


@dataclass(frozen=True, slots=True)
class Asked:
    """A verdict and what it took."""

    scores: Mapping[str, float]
    seconds: float
    cached: bool
    retries: float


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

    async def ask(self, fields: Mapping[str, str], sample: int, episode: str) -> Asked:
        """One verdict. Raises ToolError where there is none, MisconfiguredError where there never will be."""
        assert self._policy is not None, "it is used inside `async with`"
        arguments = {"fields": dict(fields), "sample": sample, "decided by": self._identity()}
        invocation = Invocation(
            ToolCall("llm_judge", arguments, id=str(sample)),
            shown="llm_judge",
            spec=_SPEC,
            session=self,  # type: ignore[arg-type]  # of a session, only `call` is asked
            traits=_TRAITS,
            endpoint=self.address,
            episode=episode,
        )
        clock = asyncio.get_running_loop().time
        begin = clock()
        path = self._path(arguments)
        stored = await asyncio.to_thread(_read, path) if path is not None else None
        if stored is not None:
            return Asked(json.loads(stored), clock() - begin, True, 0.0)
        result = await self._policy.attempt(invocation)
        cached = bool(invocation.effort.get("cache_hits"))
        if path is not None and not cached:
            await asyncio.to_thread(_write, path, result.text)
        return Asked(json.loads(result.text), clock() - begin, cached, invocation.effort.get("retries", 0.0))

    def _path(self, arguments: Mapping[str, Any]) -> Path | None:
        """Where a verdict is kept, a file each; several runs may use the folder at once. None where none is."""
        if self._options.cache_dir is None:
            return None
        key = json.dumps(arguments, sort_keys=True)
        return self._options.cache_dir / f"{hashlib.blake2b(key.encode(), digest_size=20).hexdigest()}.json"

    async def call(self, call: ToolCall) -> ToolResult:
        """The question itself, asked by the last layer. A reply that can't be read is an error, and isn't kept."""
        question = self._prompt.fill(call.arguments["fields"])
        reply = await self._client.ask(self._body(question, call.arguments["sample"]))
        try:
            return ToolResult(json.dumps(read_verdict(reply, self._options)))
        except UnreadableVerdictError as error:
            raise JudgeAnswerError(f"its verdict can't be read: {error}") from None

    def _body(self, question: str, sample: int) -> dict[str, Any]:
        messages = [{"role": "user", "content": question}]
        if self._options.system is not None:
            messages.insert(0, {"role": "system", "content": self._options.system})
        return {**self._sampling(sample), "messages": messages}

    def _sampling(self, sample: int) -> dict[str, Any]:
        options = self._options
        several = options.samples > 1 and "temperature" not in options.model_fields_set
        optional = {
            "temperature": 1.0 if several else options.temperature,
            "max_tokens": options.max_tokens,
            "seed": None if options.seed is None else options.seed + sample,
            "response_format": response_format(options),
        }
        given = {name: value for name, value in optional.items() if value is not None}
        return {"model": options.model, **given, **options.extra_body}

    def _identity(self) -> Sequence[Any]:
        options = self._options
        bounds = [options.verdict, list(options.scale), [it.name for it in options.criteria]]
        return [self.address, self._sampling(0), options.system, self._prompt.identity, bounds]


def _read(path: Path) -> str | None:
    """A verdict; None where there is none, or a torn one."""
    try:
        text = path.read_text(encoding="utf-8")
        scores = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return None
    fits = isinstance(scores, dict) and all(isinstance(value, int | float) for value in scores.values())
    return text if fits and scores else None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text, durable=False)
