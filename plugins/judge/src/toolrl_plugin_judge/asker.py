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
from typing import Any, ClassVar

from toolrl.config.tool_policy import PolicyOptions
from toolrl.runs.files import write_atomic
from toolrl.tools.endpoints import Endpoints
from toolrl.tools.invocation import Invocation
from toolrl.tools.policy import CallPolicy
from toolrl.tools.traits import ToolTraits
from toolrl.types import ToolCall, ToolResult, ToolSpec
from toolrl_common.http_client import without_secrets
from toolrl_plugin_judge.client import ChatClient, JudgeAnswerError
from toolrl_plugin_judge.options import JudgeOptions
from toolrl_plugin_judge.prompt import JudgePrompt
from toolrl_plugin_judge.verdict import UnreadableVerdictError, read_verdict, response_format

_SPEC = ToolSpec("llm_judge", "")
_TRAITS = ToolTraits(pure=True)


@dataclass(frozen=True, slots=True)
class Asked:
    """A verdict and what it took."""

    scores: Mapping[str, float]
    seconds: float
    cached: bool
    retries: float


class Asker:
    """Asks for one reward. `open` it before, `close` it after."""

    def __init__(self, options: JudgeOptions, prompt: JudgePrompt) -> None:
        self._options = options
        self._prompt = prompt
        self._client = ChatClient(options.base_url, options.api_key, options.headers)
        self.address = without_secrets(self._client.url)
        self._policy: CallPolicy | None = None
        self._shared: _Shared | None = None

    async def open(self) -> None:
        """Meet others that ask the same address. Raises ConfigError where they ask for other limits."""
        options = self._options
        await self._client.__aenter__()
        self._shared = _Shared.of_this_loop()
        self._shared.users += 1
        names = ("timeout", "cache", "retry", "breaker", "concurrency", "rate", "queue_timeout")
        policy = PolicyOptions(**{name: getattr(options, name) for name in names})
        self._policy = CallPolicy(policy, name=self.address, endpoints=self._shared.endpoints)
        await self._policy.prepare({_SPEC.name: _TRAITS})

    async def close(self) -> None:
        """Close its connections, and leave the others."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.leave()
        await self._client.__aexit__()

    async def ask(self, fields: Mapping[str, str], sample: int, episode: str) -> Asked:
        """One verdict. Raises ToolError where there is none, MisconfiguredError where there never will be."""
        assert self._policy is not None, "open it first"
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
        if reply.finish in ("length", "content_filter"):
            raise JudgeAnswerError(f"its reply was cut off ({reply.finish}): {reply.text[-120:]!r}")
        try:
            return ToolResult(json.dumps(read_verdict(reply.text, self._options)))
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


class _Shared:
    """Breakers and limits of all that ask in one event loop; forgotten when the last of them has closed."""

    _of_loops: ClassVar[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared]] = weakref.WeakKeyDictionary()

    def __init__(self) -> None:
        self.endpoints = Endpoints()
        self.users = 0

    @classmethod
    def of_this_loop(cls) -> _Shared:
        return cls._of_loops.setdefault(asyncio.get_running_loop(), cls())

    def leave(self) -> None:
        self.users -= 1
        if not self.users:
            self.endpoints = Endpoints()


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
