"""The model as the parts of an episode may ask it: a sub-agent, a player, a simulated user, a summariser.

Each answer is a turn of the episode, sampled after the messages as the chat format renders them. It extends the role's
trajectory whose tokens, to the end of its last turn, are the longest beginning of that prompt; where there is none, or
it is being extended, the turn opens a trajectory. Then what an earlier one sampled is restated as given. So every
sampled token stands behind exactly what the model read, whatever was done to the messages in between.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from toolrl.errors import EngineError, ExactnessError, ParserError, ToolError
from toolrl.protocols import ChatFormat
from toolrl.rollout.trajectory import TrajectoryRun
from toolrl.types import Message, Rendered, ToolSpec, Trajectory, Turn


class EpisodeModel:
    """Follows `Model`, for one episode. `begin` makes an empty trajectory of a role."""

    def __init__(self, chat: ChatFormat, begin: Callable[[str], TrajectoryRun], seed: int) -> None:
        self._chat = chat
        self._begin = begin
        self._seed = seed
        self._asked: Counter[bytes] = Counter()
        self._runs: list[TrajectoryRun] = []
        self._busy: set[int | None] = set()
        self._failure: Exception | None = None
        self.ended = False
        """Whether nothing may be asked any more."""

    async def ask(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        *,
        role: str = "agent",
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> Turn:
        """See `Model`."""
        if self.ended:
            raise ToolError("the episode has ended: the model can't be asked any more")
        prompt = self._chat.open(messages, tools)
        place = self._longest(prompt, role)
        # A copy, so that a generation that fails or is cancelled leaves nothing.
        run = self._begin(role) if place is None else self._runs[place].copy()
        if not run.extend(prompt) or run.room <= 0:
            raise ToolError(f"the prompt has {len(prompt.ids)} tokens and leaves no room in rollout.max_episode_tokens")
        run.messages = list(messages)
        # Seeded by what is asked, so that parallel questions may come in any order.
        digest = hashlib.blake2b(array("q", prompt.ids).tobytes(), digest_size=16).digest()
        chance = Random(f"{self._seed}/{role}/{digest.hex()}/{self._asked[digest]}")
        self._asked[digest] += 1
        self._busy.add(place)
        try:
            turn, _ = await run.turn(tools, chance, max_tokens=max_tokens, stop=stop)
        except (EngineError, ExactnessError, ParserError) as error:
            self._failure = error  # Whoever asked may take it for a failure of its own.
            raise
        finally:
            self._busy.discard(place)
        if self.ended:
            raise ToolError("the episode has ended while the model answered")
        if place is None:
            self._runs.append(run)
        else:
            self._runs[place] = run
        return turn

    def check(self) -> None:
        """Raises what failed in the engine or the parser, which is no failure of the part that asked."""
        if self._failure is not None:
            raise self._failure

    def results(self) -> list[Trajectory]:
        """By their first turns."""
        return [run.result() for run in sorted(self._runs, key=lambda run: run.turns[0].index)]

    def _longest(self, prompt: Rendered, role: str) -> int | None:
        found = [
            (length, place)
            for place, run in enumerate(self._runs)
            if run.role == role and place not in self._busy and (length := run.beginning(prompt))
        ]
        return max(found)[1] if found else None
