"""The cached tokens of each episode, and the index that finds cached beginnings of new prompts.

A session is the cache of one episode. While it decodes, its keys and values are in a slot; while it waits for a
tool they are in tensors of its own ("parked"). Parked sessions give way, the longest unused first, when space is
short; the next prompt then computes them again.

Sessions are indexed in the lexicographic order of their prompts: of all that share a beginning with a new prompt, the
ones next to it in this order share most.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Collection, Iterator

from toolrl.types import common_beginning
from toolrl_plugin_transformers.cache import Saved, SlotCache

FEWEST = 16
"""Tokens below which a beginning isn't taken from another session."""


class SessionCache:
    """The cached tokens of one episode."""

    __slots__ = ("_stored", "indexed", "name", "parked", "slot", "tokens")

    def __init__(self, name: str) -> None:
        self.name = name
        self.tokens: list[int] = []
        """Prompt and sampled tokens. The first `valid` of them are cached."""
        self.slot: int | None = None
        """Where it decodes; None while it waits."""
        self.parked: Saved | None = None
        self.indexed: list[int] = []
        """The prompt under which the index knows it; empty where it doesn't."""
        self._stored = 0

    @property
    def valid(self) -> int:
        """Tokens that are cached. While it decodes that is all but the last, which the next step computes."""
        return self._stored if self.slot is None else len(self.tokens) - 1

    def rest(self, stored: int) -> None:
        """Leave the slot, with so many tokens still cached elsewhere."""
        self.slot = None
        self._stored = stored

    def shared(self, prompt: list[int]) -> int:
        """How many tokens at the start of `prompt` are cached here."""
        return common_beginning(self.tokens, prompt, min(self.valid, len(prompt)))


class SessionStore:
    """All sessions by name, the parked ones in order of use, and the index of beginnings."""

    def __init__(self) -> None:
        self._named: dict[str, SessionCache] = {}
        self._parked: dict[SessionCache, None] = {}
        self._index: list[SessionCache] = []
        self.parked_tokens = 0

    def __iter__(self) -> Iterator[SessionCache]:
        return iter(self._named.values())

    def get(self, name: str) -> SessionCache:
        """The session of this name, new where there is none."""
        return self._named.setdefault(name, SessionCache(name))

    def find(self, name: str) -> SessionCache | None:
        """The session of this name, or None."""
        return self._named.get(name)

    def close(self, session: SessionCache) -> None:
        """Forget a session and what it cached."""
        self.drop(session)
        del self._named[session.name]

    def drop(self, session: SessionCache) -> None:
        """Forget what a session cached; its tensors are freed, its slot is the caller's to reuse."""
        self.unpark(session)
        session.rest(0)
        self._forget(session)

    def _forget(self, session: SessionCache) -> None:
        if session.indexed:
            self._index.remove(session)
            session.indexed = []

    def park(self, session: SessionCache, slots: SlotCache, slot: int, valid: int) -> None:
        """Take a session's first `valid` tokens out of the slot."""
        session.rest(valid)
        if valid:
            session.parked = slots.save(slot, valid)
            self._parked[session] = None
            self.parked_tokens += valid

    def unpark(self, session: SessionCache) -> None:
        """Free a session's own tensors, once they are in a slot or not wanted any more."""
        if session.parked is not None:
            self.parked_tokens -= session.parked.keys.shape[2]
            session.parked = None
            del self._parked[session]

    def make_room(self, tokens: int, keep: Collection[SessionCache]) -> None:
        """Drop parked sessions, the longest unused first, until at most `tokens` tokens are parked."""
        for session in list(self._parked):
            if self.parked_tokens <= tokens:
                return
            if session not in keep:
                self.drop(session)

    def index(self, session: SessionCache, prompt: list[int]) -> None:
        """Let others find the beginning that this session has in common with them."""
        self._forget(session)
        session.indexed = list(prompt)
        insort(self._index, session, key=_prompt)

    def longest(self, prompt: list[int], own: SessionCache) -> tuple[SessionCache, int]:
        """The session with the most tokens of `prompt`'s beginning, and how many; `own` unless another has more."""
        place = bisect(self._index, prompt, key=_prompt)
        best, most = own, own.shared(prompt)
        for session in self._index[max(place - 1, 0) : place + 1]:
            shared = session.shared(prompt)
            if shared > most and shared >= FEWEST:
                best, most = session, shared
        return best, most


def _prompt(session: SessionCache) -> list[int]:
    return session.indexed
