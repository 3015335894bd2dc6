"""The reward `format`, and rewards that are functions of an episode."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from toolrl.protocols import BuildContext
from toolrl.tools.callables import name_of
from toolrl.tools.function import is_async
from toolrl.tools.values import as_number, scalar
from toolrl.types import CallError, Episode, Score, ToolCall


class FormatRewardOptions(BaseModel):
    """Options of the reward `format`."""

    model_config = ConfigDict(extra="forbid")

    no_calls: float = Field(1.0, description="The reward of an episode in which nothing looked like a call.")
    recovered: float = Field(
        1.0, ge=0, le=1, description="The value of a call that the parser had to mend (its option `repair`)."
    )


class FormatReward:
    """Well-formedness: the share of what looked like a call that could be read as one, from 0 to 1.

    Calls of unknown tools and calls whose arguments don't fit count as well-formed: the model wrote the syntax right.
    """

    def __init__(self, options: FormatRewardOptions | None = None, context: BuildContext | None = None) -> None:
        self._options = options or FormatRewardOptions()

    async def score(self, episode: Episode) -> Score:
        """The value, with the counts as metrics."""
        items = [item for turn in episode.turns for item in turn.items]
        errors = sum(isinstance(item, CallError) for item in items)
        recovered = sum(isinstance(item, ToolCall) and item.recovered for item in items)
        metrics = {"malformed": float(errors), "recovered": float(recovered)}
        if not items:
            return Score(self._options.no_calls, metrics=metrics)
        well_formed = len(items) - errors - recovered * (1.0 - self._options.recovered)
        return Score(well_formed / len(items), metrics=metrics)


class FunctionReward:
    """A reward that is a function of an episode: it returns a number, a `Score`, or whether the answer is correct."""

    def __init__(self, function: Callable[[Episode], Any]) -> None:
        self._function = function
        self.score: Any = self._awaited if is_async(function) else self._called

    async def _awaited(self, episode: Episode) -> Score:
        return _score(await self._function(episode))

    def _called(self, episode: Episode) -> Any:
        given = self._function(episode)
        return _later(given) if inspect.isawaitable(given) else _score(given)  # a wrapper of an async function


async def _later(given: Awaitable[Any]) -> Score:
    return _score(await given)


def _score(value: Any) -> Score:
    if isinstance(value, Score):
        return value
    given = scalar(value)
    try:
        number = as_number(given)
    except TypeError:
        shown = "None" if value is None else f"{type(value).__name__} {value!r:.80}"
        raise TypeError(f"it returned {shown}, expected a number, a bool or a Score") from None
    return Score(number, metrics={"correct": number} if isinstance(given, bool) else {})


_OF_TRL = {"prompts", "completions", "completion_ids", "trainer_state"}
_OF_VERL = {"data_source", "solution_str", "ground_truth", "extra_info"}
"""Parameters of other frameworks' reward functions."""
_FOR_TRL = (
    "In place of TRL's completions take episode.final_text, of its prompts episode.task.messages, of a column "
    "episode.task.answer or episode.task.extra, and return one number"
)
_FOR_VERL = (
    "In place of verl's solution_str take episode.final_text, of ground_truth episode.task.answer, of extra_info "
    "episode.task.extra; the reward `verl` takes a file with compute_score as it is"
)


def check_reward_function(function: Callable[..., Any], options: Mapping[str, Any] | None = None) -> None:
    """Raise TypeError where the function can't be called with an episode and these keyword arguments."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function of C has none
        return
    names = signature.parameters.keys()
    try:
        signature.bind(None, **(options or {}))
        if not _OF_TRL & names and not _OF_VERL & names:
            return
        problem = "its parameters are another framework's"
    except TypeError as error:
        problem = str(error)
    name = name_of(function)
    hint = _FOR_TRL if _OF_TRL & names else _FOR_VERL if _OF_VERL & names else ""
    text = f"{name}{signature} can't score an episode: {problem}; expected one parameter, `def {name}(episode)`"
    raise TypeError(f"{text}. {hint}" if hint else text)
