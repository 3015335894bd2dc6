"""One request to an OpenAI-compatible chat endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolrl.errors import RewardError, ToolError
from toolrl_common.http_client import JsonClient, refusal_text

MAX_BYTES = 4 << 20


class MisconfiguredError(RewardError):
    """The judge can't be asked like this, today or tomorrow."""


class JudgeAnswerError(ToolError):
    """An answer without a verdict."""

    kind = "unreadable"


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What the judge said."""

    text: str
    finish: str


class ChatClient(JsonClient):
    """Asks one address. An address, a key or a request that can't be right is a MisconfiguredError: no episode's fault,
    and nothing that a default may hide."""

    service = "judge"
    hint = "Correct `base_url`, `api_key`, `model`, or what else the answer names."
    error = JudgeAnswerError
    misconfigured = MisconfiguredError
    transient = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
    wrong = range(201, 600)

    def __init__(self, base_url: str, api_key: str | None, headers: Mapping[str, str]) -> None:
        authorization = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        super().__init__(f"{base_url.rstrip('/')}/chat/completions", {**authorization, **headers}, max_bytes=MAX_BYTES)

    async def ask(self, body: Mapping[str, Any]) -> ChatReply:
        """The judge's reply. Raises TransientToolError, JudgeAnswerError, MisconfiguredError."""
        answer = await self.post(body, seconds=None)  # How long it may take is the policy's to say.
        try:
            choice = answer["choices"][0]
            text, refusal = choice["message"].get("content"), choice["message"].get("refusal")
        except (LookupError, TypeError, AttributeError) as error:
            raise JudgeAnswerError(f"its answer is no chat completion: {answer!r:.120}") from error
        if not isinstance(text, str):
            raise JudgeAnswerError(f"it said nothing: {refusal or choice.get('finish_reason')!s:.120}")
        return ChatReply(text, str(choice.get("finish_reason")))

    def _refused(self, response: Any, content: bytes) -> Exception:
        if "insufficient_quota" in refusal_text(content):  # which comes as 429, and doesn't pass
            return self._misconfigured(f"answers HTTP {response.status}: {refusal_text(content)}")
        return super()._refused(response, content)
