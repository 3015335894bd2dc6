"""A conversation whose thinking the template drops behind the next question, asked as a client would."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.model import EpisodeModel
from toolrl.rollouts.trajectory import TrajectoryRun
from toolrl.tools.toolbox import ToolBox
from toolrl.types import Message, ParsedTurn, ToolSpec, Trajectory
from toolrl_testing.fakes import FakeParser, ScriptedEngine


class Thinking(FakeParser):
    def parse(self, text: str, **_: Any) -> ParsedTurn:
        thought, _, said = text.partition("</think>")
        return ParsedTurn(content=said.strip(), reasoning=thought.removeprefix("<think>").strip())


def asked(chat: Any, tools: list[ToolSpec], *, exact: bool) -> list[Trajectory]:
    environment = Environment("default", Thinking(), chat, ToolBox([]))
    engine = ScriptedEngine(lambda prompt: "<think>\nponder\n</think>\n\nfour", chat)
    numbers = count(), count(1)
    model = EpisodeModel(
        chat, lambda role: TrajectoryRun(environment, engine, Limits(100, 5000), numbers, "s", role), seed=1
    )

    async def main() -> None:
        messages = [Message("system", "Be brief."), Message("user", "2 + 2?")]
        for question in ("Sure?", "Really?", ""):
            turn = await model.ask(messages, tools, exact=exact)
            messages += [replace(turn.message, reasoning=None), Message("user", question)]

    asyncio.run(main())
    return model.results()


@pytest.mark.parametrize(("exact", "turns"), [(True, [3]), (False, [1, 1, 1])])
def test_the_tokens_go_on_or_the_template_is_followed(
    build: Any, calculator: ToolSpec, exact: bool, turns: list[int]
) -> None:
    """Exactly: one trajectory that keeps all thinking. As the template renders: each question opens one, whose prompt
    holds none."""
    chat = build("thinking")
    found = asked(chat, [calculator], exact=exact)
    assert [len(it.turns) for it in found] == turns
    prompt = chat.decode(found[-1].ids[: found[-1].turns[-1].segments[0].tokens[0]]).text
    assert prompt.count("four") == 2
    assert prompt.count("ponder") == (2 if exact else 0)
    if not exact:
        shown = list(found[-1].messages[:-1])
        assert found[-1].ids[: found[-1].prompt_length] == chat.open(shown, [calculator]).ids
