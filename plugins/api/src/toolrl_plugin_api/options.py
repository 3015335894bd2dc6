"""Options of the engine `chat`."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from toolrl.config.tool_policy import RetryOptions
from toolrl_common.chat_api import ApiOptions

_FIELDS = ("temperature", "top_p", "top_k", "min_p", "stop", "tools", "model", "messages")
"""Fields of a request, besides that of the answer's length."""


class ChatOptions(ApiOptions):
    """Options of the engine `chat`."""

    tools: Literal["native", "parser"] = Field(
        "native",
        description="native: tools go into the request's `tools`, and calls come from its answer's `tool_calls`. "
        "parser: tools are described in the system message, and the environment's parser reads calls in the text, as "
        "for endpoints without tools.",
    )
    tool_prompt: str | None = Field(
        None,
        description="With `tools: parser`: the description of the tools, `{tools}` in it for their JSON Schemas; None "
        "for Qwen's wording, which the parser `hermes` reads.",
    )
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="The field that limits an answer; reasoning models of OpenAI take the other."
    )
    omit: list[str] = Field(
        [], description="Fields left out of the request, such as `temperature` where a model refuses it."
    )
    extra: dict[str, Any] = Field({}, description="More fields of the request, such as `reasoning_effort: low`.")
    send_reasoning: str | None = Field(
        None,
        description="The field of assistant messages in which reasoning is sent back, such as `reasoning_content`; "
        "None sends none.",
    )
    timeout: float = Field(600.0, gt=0, description="Seconds that an answer may take.")
    retry: RetryOptions | None = Field(
        RetryOptions(attempts=8, first_delay=1.0, max_delay=60.0, max_seconds=1800.0, on_timeout=True),
        description="Ask again where the API is busy, fails or can't be reached; `Retry-After` is honoured. None for "
        "never.",
    )
    input_price: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="Price of a million prompt tokens, for `usage/cost`."
    )
    cached_input_price: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="Price of a million cached prompt tokens; None for input_price."
    )
    output_price: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="Price of a million completion tokens, reasoning included."
    )

    @property
    def replaces(self) -> dict[str, str]:
        """Components in the place of the config's: see `toolrl.protocols.ChatEngine`."""
        native = {"parsers": "api/native"} if self.tools == "native" else {}
        return {"trainers": "api/none", "chat_formats": "api/characters", **native}

    @model_validator(mode="after")
    def _no_idle_options(self) -> Self:
        if self.tool_prompt is not None and (self.tools != "parser" or "{tools}" not in self.tool_prompt):
            raise ValueError("tool_prompt needs `tools: parser`, and {tools} where their schemas go")
        sent = (*_FIELDS, self.max_tokens_field)
        if unknown := [name for name in self.omit if name not in sent]:
            raise ValueError(f"omit: a request has no {unknown[0]!r}; its fields are {', '.join(sent)}")
        if (self.input_price is None) != (self.output_price is None):
            raise ValueError("give both input_price and output_price, or neither")
        if self.cached_input_price is not None and self.input_price is None:
            raise ValueError("cached_input_price needs input_price")
        return self

    def cost(self, prompt: float, cached: float, completion: float) -> float | None:
        """The price of so many tokens; `cached` are among those of the prompt. None where prices aren't given."""
        if self.input_price is None or self.output_price is None:
            return None
        of_cache = self.input_price if self.cached_input_price is None else self.cached_input_price
        return ((prompt - cached) * self.input_price + cached * of_cache + completion * self.output_price) / 1e6
