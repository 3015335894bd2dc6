"""Options of what rewrites a history."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

PLACEHOLDER = "[Removed to save room. Call the tool again if you need this.]"
QUESTION = (
    "The context is nearly full. Sum up for yourself: what you have found out, with every value that you still need, "
    "and what is left to do. Only the task and this summary stay. Call no tools now."
)
SUMMARY = "What you did so far, in your own summary:\n{summary}"


def _whole_or_share(value: float) -> float:
    if value > 1 and value != int(value):
        raise ValueError("expected a whole number of tokens, or a share of the limit up to 1")
    return value


def _with_summary(text: str) -> str:
    if "{summary}" not in text:
        raise ValueError("expected a text with {summary} in it, which is replaced by the summary")
    return text


Tokens = Annotated[float, Field(gt=0, allow_inf_nan=False), AfterValidator(_whole_or_share)]


class DropToolOutputOptions(BaseModel, extra="forbid"):
    """Options of `drop_tool_output`."""

    over_tokens: Tokens = Field(
        0.5,
        description="Drop only where the history has so many tokens: a number, or up to 1 a share of "
        "`rollout.max_episode_tokens`.",
    )
    keep: int = Field(3, ge=0, description="The last so many results stay whole.")
    min_length: int = Field(200, ge=1, description="Results with fewer characters, and without images, stay whole.")
    placeholder: str = Field(PLACEHOLDER, min_length=1, description="What stands in the place of a result.")


class SummariseOptions(BaseModel, extra="forbid"):
    """Options of `summarise`."""

    at_tokens: Tokens = Field(
        0.75,
        description="Sum up when the history has so many tokens: a number, or up to 1 a share of "
        "`rollout.max_episode_tokens`. Earlier where `prompt` and `max_tokens` wouldn't fit any more.",
    )
    max_tokens: int = Field(512, ge=1, description="Tokens of a summary at most, its thinking included.")
    prompt: str = Field(QUESTION, min_length=1, description="The user message that asks for the summary.")
    message: Annotated[str, AfterValidator(_with_summary)] = Field(
        SUMMARY, description="What is put behind the task, with the summary in the place of `{summary}`."
    )
    keep: int = Field(
        0, ge=0, description="The last so many turns, with the answers to their calls, stay behind the summary."
    )
    role: str = Field(
        "agent",
        min_length=1,
        description="Who sums up. `agent` extends the trajectory of the conversation and is trained as its turns are; "
        "another role opens one of its own, which `untrained_roles` may leave untrained.",
    )


class StripThinkingOptions(BaseModel, extra="forbid"):
    """Options of `strip_thinking`."""

    keep: Literal["question", "none"] = Field(
        "question",
        description="question: thinking since the last user message stays, as Qwen3's template has it. none: the "
        "thinking of every earlier turn goes.",
    )
