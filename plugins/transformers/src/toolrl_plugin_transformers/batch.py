"""Continuous batching: which episodes compute next, step by step.

A step admits waiting requests into free slots, computes their prompts together, then decodes one token for every
row. A row leaves as soon as it is done and its place is free in the next step. An episode that waits for a tool is
no row.

Prompts are computed in order of arrival, those of like length together, under a budget of tokens a step, so that
decoding goes on. Of a prompt only what no session has cached is computed; equal prompts that arrive together are
computed once and their keys and values copied. What all decoding rows have in common at the start is read once in
each step.

It has no threads: `worker.py` calls it from its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from toolrl.types import common_beginning
from toolrl_plugin_transformers.cache import SlotCache
from toolrl_plugin_transformers.model import ModelRunner
from toolrl_plugin_transformers.request import Request
from toolrl_plugin_transformers.sampling import RowSettings, sample
from toolrl_plugin_transformers.sessions import SessionCache, SessionStore

READ_ONCE = 64
"""Tokens that all decoding rows must have in common to be read once for all of them."""
SHORT = 32
"""New parts of prompts up to this long go together, whatever their lengths."""


@dataclass(slots=True)
class _Plan:
    """One prompt to compute, and the requests that have exactly this prompt."""

    requests: list[Request]
    source: SessionCache
    reuse: int

    @property
    def tokens(self) -> list[int]:
        return self.requests[0].tokens

    @property
    def new(self) -> int:
        return len(self.tokens) - self.reuse


class Batch:
    """Rows that decode, requests that wait, sessions that rest."""

    def __init__(self, runner: ModelRunner, *, max_batch: int, prefill_tokens: int, cache_tokens: int) -> None:
        self.runner = runner
        self.max_batch = max_batch
        self.prefill_tokens = prefill_tokens
        self.cache_tokens = cache_tokens
        self.version = 0
        self.slots = SlotCache(runner.shape, cache_tokens)
        self.store = SessionStore()
        self.rows: list[Request] = []
        """Row i decodes in slot i."""
        self.waiting: deque[Request] = deque()
        self.prefilled = 0
        """Prompt tokens computed so far, padding left out."""
        self.sampled = 0
        """Tokens sampled so far."""
        self._settings: RowSettings | None = None
        self._ids = torch.zeros(0)
        self._positions = torch.zeros(0)
        self._shifts: torch.Tensor | None = None
        self._length = 0
        self._shared = 0
        """Tokens that all rows have in common at the start, where they are read once."""

    @property
    def idle(self) -> bool:
        return not self.rows and not self.waiting

    # Requests.

    def add(self, request: Request) -> None:
        """Queue a request. Raises EngineError for images that the model doesn't take."""
        request.pictures = self.runner.images.locate(request.prompt, request.media)
        self.waiting.append(request)

    def cancel(self, request: Request) -> None:
        """Take a request out, wherever it is. What it has computed stays its session's."""
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.rows:
            self._retire([request])

    def close(self, name: str) -> Request | None:
        """Forget a session; the request it still had, if any."""
        running = next((r for r in (*self.rows, *self.waiting) if r.session == name), None)
        if running is not None:
            self.cancel(running)
        session = self.store.find(name)
        if session is not None:
            self.store.close(session)
        return running

    def refresh(self, version: int) -> None:
        """The weights are new: nothing cached counts any more, and rows go on from their tokens so far."""
        self.version = version
        self.waiting.extendleft(reversed(self.rows))
        self._set_rows([])
        for session in self.store:
            self.store.drop(session)

    def take_over(self, module: Any) -> None:
        """Copy another module's weights into this one's."""
        theirs = module.state_dict(keep_vars=True)
        for name, value in self.runner.module.state_dict(keep_vars=True).items():
            if value is not theirs[name]:
                value.copy_(theirs[name])

    def leave(self) -> None:
        """Nothing to do, or a pause: the module is its owner's again, and so is a GPU's memory."""
        self.runner.leave()
        if not self.rows and self.slots.shape.device.type != "cpu":
            self.slots.free()

    # A step.

    def step(self) -> list[Request]:
        """Compute prompts, then one token for every row. The requests that are over, with or without an error."""
        done = self._admit()
        if self.rows:
            done += self._decode()
        return done

    def _decode(self) -> list[Request]:
        if self._settings is None:
            self._gather()
        assert self._settings is not None
        self._reserve(len(self.rows), self._length, used=len(self.rows))
        # On their way to the device before it has work to do: afterwards the copy would wait for that.
        uniforms = torch.tensor([row.uniforms.draw() for row in self.rows]).to(self.slots.shape.device)
        logits_BV = self.runner.decode(self.slots, self._ids, self._positions, self._length, self._shifts, self._shared)
        self._ids, *found = sample(logits_BV, uniforms, self._settings, self.runner.ids, self.runner.never)
        self._positions += 1
        self._length += 1
        return self._accept(self.rows, self._ids, *found)

    def _gather(self) -> None:
        device = self.slots.shape.device
        self._settings = RowSettings.of([row.sampling for row in self.rows], device)
        self._ids = torch.tensor([row.tokens[-1] for row in self.rows], device=device)
        self._positions = torch.tensor([len(row.tokens) - 1 for row in self.rows], device=device)
        self._length = max(len(row.tokens) for row in self.rows)
        self._shared = _in_common([row.tokens for row in self.rows])
        shifts = [row.pictures.shift for row in self.rows]
        self._shifts = torch.tensor(shifts, device=device) if any(shifts) else None

    def _set_rows(self, rows: list[Request]) -> None:
        self.rows = rows
        self._settings = None

    def _accept(
        self, rows: Sequence[Request], ids_B: torch.Tensor, logprobs_B: torch.Tensor, kept: Mapping[int, np.ndarray]
    ) -> list[Request]:
        """Append a token to each row, and retire those that end with it."""
        done = []
        version = self.version
        self.sampled += len(rows)
        for place, (row, token, logprob) in enumerate(zip(rows, ids_B.tolist(), logprobs_B.tolist(), strict=True)):
            row.take(token, logprob, version, kept.get(place))
            if row.finish is not None:
                done.append(row)
        if done:
            self._retire(done)
        return done

    def _retire(self, done: Iterable[Request]) -> None:
        """Park what rows have computed and close the gaps that they leave."""
        gaps = []
        for row in done:
            session = self.store.get(row.session)
            assert session.slot is not None
            gaps.append(session.slot)
            row.routes = self.slots.routes_of(session.slot, session.valid)
            if row.error is None:
                self.store.park(session, self.slots, session.slot, session.valid)
            else:
                self.slots.wipe(session.slot)
                self.store.drop(session)
        rows = list(self.rows)
        for gap in sorted(gaps, reverse=True):
            last = rows.pop()
            if gap < len(rows):
                session = self.store.get(last.session)
                self.slots.move(len(rows), gap, session.valid)
                session.slot = gap
                rows[gap] = last
        self._set_rows(rows)
        self.store.make_room(self.cache_tokens - self.slots.slots * self.slots.columns, ())

    # Admission.

    def _admit(self) -> list[Request]:
        done: list[Request] = []
        budget = self.prefill_tokens
        while self.waiting and budget > 0:
            plans = self._plan(budget)
            if not plans:
                break
            if plans[0].new > self.prefill_tokens:
                self._prefill_part(plans[0])
                break
            budget -= max(plan.new for plan in plans) * len(plans)
            admitted = {request for plan in plans for request in plan.requests}
            self.waiting = deque(request for request in self.waiting if request not in admitted)
            done += self._prefill(plans)
        return done

    def _plan(self, budget: int) -> list[_Plan]:
        """The next prompts to compute together: the oldest, and those after it of like length that fit."""
        plans: list[_Plan] = []
        same: dict[tuple[int, ...], _Plan] = {}
        rows, width = len(self.rows), 0
        longest = max((row.longest for row in self.rows), default=0)
        for request in islice(self.waiting, self.max_batch - len(self.rows)):
            longest = max(longest, request.longest)
            if (rows + 1) * longest > self.cache_tokens and rows:
                break
            key = tuple(request.tokens)
            leader = same.get(key)
            if leader is not None:
                leader.requests.append(request)
                rows += 1
                continue
            own = self.store.get(request.session)
            source, reuse = self.store.longest(request.tokens, own)
            plan = _Plan([request], source, min(reuse, len(request.tokens) - 1))
            if plans:
                wider = max(width, plan.new)
                alike = wider <= SHORT or wider <= 2 * min(plans[0].new, plan.new)
                if not alike or wider * (len(plans) + 1) > budget:
                    continue
            elif plan.new > budget and budget < self.prefill_tokens:
                break
            plans.append(plan)
            same[key] = plan
            width = max(width, plan.new)
            rows += 1
            if plan.new > self.prefill_tokens:
                break
        return plans

    def _prefill(self, plans: Sequence[_Plan]) -> list[Request]:
        """Compute prompts, copy them to the requests that share them, and sample the first token of each."""
        first = len(self.rows)
        requests = [plan.requests[0] for plan in plans]
        followers = [(index, request) for index, plan in enumerate(plans) for request in plan.requests[1:]]
        logits_BV = self._compute(plans, [plan.tokens[plan.reuse :] for plan in plans], extra=len(followers))
        if followers:
            leaders = [index for index, _ in followers]
            self.slots.spread(
                [first + i for i in leaders], first + len(plans), max(len(plans[i].tokens) for i in leaders)
            )
            requests += [request for _, request in followers]
            pick = torch.tensor([*range(len(plans)), *leaders], device=logits_BV.device)
            logits_BV = logits_BV.index_select(0, pick)
        reuse = [plan.reuse for plan in plans] + [len(request.tokens) - 1 for _, request in followers]
        for slot, (request, have) in enumerate(zip(requests, reuse, strict=True), start=first):
            self._seat(request, slot, have)
        self._set_rows(self.rows + requests)
        uniforms = torch.tensor([request.uniforms.draw() for request in requests]).to(logits_BV.device)
        settings = RowSettings.of([request.sampling for request in requests], logits_BV.device)
        return self._accept(requests, *sample(logits_BV, uniforms, settings, self.runner.ids, self.runner.never))

    def _seat(self, request: Request, slot: int, reused: int) -> None:
        session = self.store.get(request.session)
        self.store.unpark(session)
        session.tokens = request.tokens
        session.slot = slot
        self.store.index(session, request.tokens)
        if request.cached is None:
            request.cached = reused

    def _compute(self, plans: Sequence[_Plan], new: Sequence[list[int]], *, extra: int) -> torch.Tensor:
        """Logits `[B, V]` after the given new tokens, which end up in the slots behind the rows. `extra` more slots are
        made ready."""
        first = len(self.rows)
        columns = max(plan.reuse + len(part) for plan, part in zip(plans, new, strict=True))
        columns = max([columns, *(len(row.tokens) for row in self.rows)])
        self._reserve(first + len(plans) + extra, columns, used=first, keep=[p.source for p in plans])
        for slot, plan in enumerate(plans, start=first):
            source = plan.source
            if plan.reuse and source.slot is not None:
                self.slots.move(source.slot, slot, plan.reuse)
            elif plan.reuse:
                assert source.parked is not None
                self.slots.load(slot, source.parked, plan.reuse)
        self.prefilled += sum(map(len, new))
        pictures = [plan.requests[0].pictures for plan in plans]
        return self.runner.prefill(self.slots, first, new, [plan.reuse for plan in plans], pictures)

    def _prefill_part(self, plan: _Plan) -> None:
        """Compute as much of one long prompt as a step may, and keep it for the next."""
        request = plan.requests[0]
        end = request.pictures.cut(plan.reuse, plan.reuse + self.prefill_tokens)
        part = request.tokens[plan.reuse : min(end, len(request.tokens) - 1)]
        self._compute([plan], [part], extra=0)
        session = self.store.get(request.session)
        if request.cached is None:
            request.cached = plan.reuse
        # Parked from the slot behind the rows, where it was just computed.
        self.store.unpark(session)
        session.tokens = list(request.tokens)
        self.store.park(session, self.slots, len(self.rows), plan.reuse + len(part))

    def _reserve(self, slots: int, columns: int, *, used: int, keep: Iterable[SessionCache] = ()) -> None:
        if slots <= self.slots.slots and columns <= self.slots.columns:
            return
        new_slots, new_columns = self.slots.size_for(slots, columns)
        self.store.make_room(self.cache_tokens - new_slots * new_columns, set(keep))
        self.slots.reserve(slots, columns, used=used)


def _in_common(rows: Sequence[list[int]]) -> int:
    """Tokens at the start that all rows have in common, their last ones left out, which aren't computed yet; 0 where
    they are few."""
    shared = min(map(len, rows)) - 1 if len(rows) > 1 else 0
    for row in rows[1:]:
        shared = common_beginning(rows[0], row, shared)
    return shared if shared >= READ_ONCE else 0
