"""Asks an OpenAI-compatible endpoint for chat completions: address, key, and which of its refusals may pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from toolrl.config.tool_policy import RateOptions
from toolrl.errors import TransientToolError
from toolrl_common.http_client import JsonClient, refusal_text


class ApiOptions(BaseModel, extra="forbid"):
    """Where an API is, and how often it may be asked."""

    base_url: str = Field(
        pattern=r"^https?://[^\s]+$",
        description="Address of the API, up to `/chat/completions`: `http://host:8000/v1`.",
    )
    model: str = Field(min_length=1, description="The name under which the API knows the model.")
    api_key: str | None = Field(
        None, repr=False, description="Sent as a bearer token; write `${NAME}` to take it from the environment."
    )
    headers: dict[str, str] = Field({}, repr=False, description="More HTTP headers, such as `api-key`.")
    concurrency: int = Field(16, ge=1, description="Requests to the address that are under way at once.")
    rate: RateOptions | None = Field(None, description="How often requests to the address may begin; None for any.")


class ChatClient(JsonClient):
    """Asks one address, as `JsonClient`. A refusal that can't pass is a wrong address, key or request."""

    transient = frozenset({408, 409, 425, 429, *range(500, 600)} - {501, 505})  # proxies have their own among these
    wrong = range(201, 600)

    def __init__(self, options: ApiOptions, *, max_bytes: int) -> None:
        self._key = options.api_key or ""
        authorization = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
        url = f"{options.base_url.rstrip('/')}/chat/completions"
        super().__init__(url, {**authorization, **options.headers}, max_bytes=max_bytes)

    async def complete(self, body: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The answer, and the first of its choices, which has a `message`. The caller limits the time. Raises the
        errors of `toolrl_common.http_client`."""
        answer = await self.post(body, seconds=None)
        try:
            choice = answer["choices"][0]
            choice["message"].get("content")
        except (LookupError, TypeError, AttributeError) as error:
            # Routers pass the refusal of the provider behind them on with status 200.
            refusal = answer.get("error") if isinstance(answer, Mapping) else None
            if isinstance(refusal, Mapping) and refusal.get("code") in [*self.transient]:
                said = self._without_key(f"{refusal.get('message')}")
                raise TransientToolError(f"The {self.service} failed: {said:.300}") from error
            raise self.error(f"its answer is no chat completion: {self._without_key(repr(answer)):.120}") from error
        return answer, choice

    def _refused(self, response: Any, content: bytes) -> Exception:
        content = self._without_key(content.decode(errors="replace")).encode()
        if "insufficient_quota" in refusal_text(content):  # which comes as 429, and doesn't pass
            return self._misconfigured(f"answers HTTP {response.status}: {refusal_text(content)}")
        return super()._refused(response, content)

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[api_key]") if self._key else text
