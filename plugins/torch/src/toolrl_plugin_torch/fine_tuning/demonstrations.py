"""Demonstrations: conversations as tokens with a mask on the assistant's tokens.

A demonstration goes through the same chat format as an episode (open, say, bridge), and results stand inside the turn
where the parser lets them, so its tokens are those that the policy will see and sample later. Episodes of an earlier
run are taken as the tokens they are.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from toolrl.chat.conversation import check_demonstration, read_messages
from toolrl.errors import DataError
from toolrl.protocols import EpisodeContext, ToolParser
from toolrl.rollouts.environment import Environment, pick_environment
from toolrl.tools.validation import arguments_form
from toolrl.types import CallRecord, Episode, MediaInput, Message, Rendered, Task, ToolResult, ToolSpec

_OPEN = ("additionalProperties", "patternProperties", "anyOf", "oneOf", "allOf", "$ref")
"""Keys of a schema that may allow arguments beside its `properties`."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One conversation. Ids and mask have the same length; the mask is 1 exactly on the tokens of the assistant's
    messages that are trained on."""

    ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    media: tuple[MediaInput, ...] = ()
    """The images among the ids, in order."""


async def encode_task(task: Task, environments: Mapping[str, Environment]) -> Demonstration:
    """A task whose messages hold the assistant's turns. Raises DataError if they don't, or don't alternate, or call a
    tool that the model isn't shown."""
    environment = pick_environment(environments, task)
    messages = environment.opening(replace(task, messages=_conversation(task)))
    spoken = [index for index, message in enumerate(messages) if message.role == "assistant"]
    if not spoken or spoken[0] == 0:
        raise DataError(
            f"task {task.id!r} is no demonstration: it needs a user message and then an assistant message, got roles "
            f"{[message.role for message in messages]}",
            hint="Use a data set whose messages hold the assistant's turns.",
        )
    context = EpisodeContext(task.id, task, random.Random(task.id))
    async with environment.tools.open(task, context) as session:
        specs = session.specs()
    for message in messages:
        if message.trained:
            _check_calls(task, message, {spec.name: spec for spec in specs})
    chat = environment.chat
    prompt = chat.open(messages[: spoken[0]], specs)
    ids, media = list(prompt.ids), list(prompt.media)
    mask = [0] * len(ids)
    for start, following in pairwise([*spoken, None]):
        sampled = chat.say(messages[start])
        between = [] if following is None else messages[start + 1 : following]
        inside = _inside(environment.parser, messages[start], between)
        if inside is not None and sampled[-1] in chat.end_ids:
            sampled = sampled[:-1]  # The end of its calls ended the turn, as in an episode.
        ids.extend(sampled)
        mask.extend([int(messages[start].trained)] * len(sampled))
        if following is None:
            break
        given = chat.bridge(sampled, between, specs) if inside is None else Rendered(chat.inline(inside))
        media.extend(item.moved(len(ids)) for item in given.media)
        ids.extend(given.ids)
        mask.extend([0] * len(given.ids))
    return Demonstration(tuple(ids), tuple(mask), tuple(media))


def _conversation(task: Task) -> tuple[Message, ...]:
    """The task's messages, with answers in the order of their calls. Raises DataError."""
    try:
        messages = read_messages(task.messages)
        check_demonstration(messages)
    except DataError as error:
        raise DataError(f"task {task.id!r}: {error.message}", hint=error.hint) from None
    return messages


def _check_calls(task: Task, said: Message, specs: Mapping[str, ToolSpec]) -> None:
    """Raises DataError for a call that the model could not know how to make: of a tool, or with an argument, that its
    prompt doesn't show."""
    for call in said.tool_calls:
        spec = specs.get(call.name)
        if spec is None:
            raise DataError(
                f"task {task.id!r}: a call of the tool {call.name!r}, which the prompt doesn't show; it shows: "
                f"{', '.join(specs) or 'no tools'}",
                hint="Add it to the environment's tools. A message with `weight: 0` isn't trained on, nor checked.",
            )
        known = spec.parameters.get("properties")
        if not known or any(spec.parameters.get(key) not in (None, False) for key in _OPEN):
            continue
        unknown = [name for name in call.arguments if name not in known]
        if unknown:
            raise DataError(
                f"task {task.id!r}: a call of the tool {call.name!r} with the argument {unknown[0]!r}, which the "
                f"tool's schema doesn't have; expected: {arguments_form(spec)}",
                hint="Mend the call. A message with `weight: 0` isn't trained on, nor checked.",
            )


def _inside(parser: ToolParser, said: Message, between: Sequence[Message]) -> str | None:
    """The results of a turn's calls as text that stands inside the turn; None where messages follow it."""
    if not said.tool_calls or [message.role for message in between] != ["tool"] * len(said.tool_calls):
        return None
    records = [
        CallRecord(call, ToolResult(message.content, message.media))
        for call, message in zip(said.tool_calls, between, strict=True)
    ]
    answers = parser.render_results(records)
    return answers if isinstance(answers, str) else None


def from_episodes(episodes: Iterable[Episode], min_reward: float) -> list[Demonstration]:
    """The trajectories of episodes without failure that were credited with at least `min_reward`, as they were sampled.
    Raises DataError for one with images that was read from a run folder, which doesn't keep them."""
    chosen = [
        (episode.id, trajectory)
        for episode in episodes
        if episode.failure is None
        for trajectory in episode.trajectories
        if trajectory.trained and any(trajectory.loss_mask) and episode.reward_of(trajectory.role) >= min_reward
    ]
    for name, trajectory in chosen:
        if any(not hasattr(value, "shape") for item in trajectory.media for value in item.tensors.values()):
            raise DataError(
                f"episode {name!r} holds images, which the run folder didn't keep",
                hint="Fine-tune on a data set of conversations with images instead (sft.data).",
            )
    return [Demonstration(it.ids, it.loss_mask, it.media) for _, it in chosen]
