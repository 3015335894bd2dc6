"""Options of the reward `llm_judge`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from toolrl.config.frame import OldNames
from toolrl.config.tool_policy import BreakerOptions, RetryOptions
from toolrl_common.chat_api import ApiOptions

TEMPLATE_FIELDS = ("question", "answer", "response", "rubric", "format")


class JudgeOptions(ApiOptions):
    """Options of the reward `llm_judge`."""

    old_names: ClassVar[OldNames] = {"cache_dir": None, "seed": None}

    rubric: str | None = Field(
        None,
        min_length=1,
        description="What makes a response good; None asks whether it answers the question correctly.",
    )
    template: str | None = Field(
        None,
        min_length=1,
        description="The question to the judge, with the fields {question}, {answer}, {response}, {rubric} and "
        "{format}; None for the plugin's own.",
    )
    system: str | None = Field(None, min_length=1, description="A system message for the judge; None for none.")
    judge: Literal["final", "all", "answer", "transcript"] = Field(
        "final",
        description="What the judge reads as the response: the `final` turn, `all` turns, the `answer` of an end flag, "
        "each without thinking and tool calls, or the `transcript` of the model's turns with what tools answered.",
    )
    max_chars: int = Field(
        20_000, ge=100, description="Of a longer response the middle is left out, and a note takes its place."
    )

    scale: tuple[float, float] = Field(
        (0.0, 10.0), description="The worst and the best score; the reward is 0 for the one and 1 for the other."
    )
    correct_from: float | None = Field(
        None, ge=0, le=1, description="A reward of at least this counts as `correct`; None judges no correctness."
    )

    temperature: float | None = Field(
        0.0,
        ge=0,
        description="At which the judge samples; None sends none.",
    )
    max_tokens: int | None = Field(1024, ge=1, description="Tokens of the judge's reply; None sends no limit.")
    extra_body: dict[str, Any] = Field(
        {}, description="More fields of the request, such as `response_format` or `seed`."
    )
    on_failure: float | None = Field(
        None,
        allow_inf_nan=False,
        description="The reward where the judge can't be had or its verdict can't be read; None fails the episode, "
        "which is then left out of training. A wrong key, address or request always fails it.",
    )
    cache: int = Field(10_000, ge=1, description="So many verdicts are kept in memory for equal questions.")
    timeout: float = Field(60.0, gt=0, description="Seconds that an answer may take.")
    queue_timeout: float = Field(600.0, gt=0, description="Seconds that a question may wait for its turn.")
    retry: RetryOptions | None = Field(
        RetryOptions(attempts=5, on_timeout=True),
        description="Ask again where the API is busy or can't be reached; None for never.",
    )
    breaker: BreakerOptions | None = Field(
        BreakerOptions(failures=10),
        description="Stop asking an address that fails again and again, for a while; None for never.",
    )

    @field_validator("scale")
    @classmethod
    def _worst_below_best(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not value[0] < value[1] or value[1] - value[0] == float("inf"):
            raise ValueError(f"the worst score has to be below the best, got {list(value)}")
        return value
