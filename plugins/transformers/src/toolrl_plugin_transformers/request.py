"""One generation as the batch sees it: what was asked, what is sampled so far, why it ended."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from toolrl.errors import EngineError
from toolrl.types import Generation, MediaInput, Sampling
from toolrl_plugin_torch.sampling_masks import encode
from toolrl_plugin_transformers.images import NONE, Pictures, marked
from toolrl_plugin_transformers.sampling import Uniforms
from toolrl_plugin_transformers.stops import StopStrings


@dataclass(eq=False, slots=True)
class Request:
    """One generation, from its arrival to its end."""

    session: str
    prompt: list[int]
    sampling: Sampling
    uniforms: Uniforms
    stops: StopStrings | None = None
    media: tuple[MediaInput, ...] = ()
    pictures: Pictures = NONE
    """Where the images stand; known once it is queued."""
    tokens: list[int] = field(default_factory=list)
    """Prompt, its images marked, and what was sampled so far; the session's own list once it is admitted."""
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    kept: list[np.ndarray] = field(default_factory=list)
    """The ids that each sampled token was drawn from, where the request asks for them."""
    cached: int | None = None
    finish: str | None = None
    """Set when it is over: stop, length or error."""
    stopped_by: str | int | None = None
    error: EngineError | None = None
    stop_ids: frozenset[int] = frozenset()
    routes: bytes = b""
    """Of all tokens but the last, once it is over."""

    def __post_init__(self) -> None:
        self.tokens = marked(self.prompt, self.media)
        self.stop_ids = frozenset(self.sampling.stop_token_ids)

    @property
    def longest(self) -> int:
        """Tokens it can have at its end."""
        return len(self.prompt) + self.sampling.max_new_tokens

    def take(self, token: int, logprob: float, version: int, kept: np.ndarray | None = None) -> None:
        """Append a sampled token, with the ids it was drawn from, and see whether the request ends with it."""
        if not math.isfinite(logprob):
            self.finish = "error"
            self.error = EngineError(
                f"the model gave logits that are not finite (weights of version {version})",
                hint="The weights have diverged: lower trainer.learning_rate or go on from an earlier checkpoint.",
            )
            return
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if kept is not None:
            self.kept.append(kept)
        if token in self.stop_ids:
            self.finish, self.stopped_by = "stop", token
        elif self.stops is not None and self.stops.could_end(token):
            self.stopped_by = self.stops.find(self.tokens[len(self.prompt) :])
            self.finish = "stop" if self.stopped_by is not None else None
        if self.finish is None and len(self.logprobs) >= self.sampling.max_new_tokens:
            self.finish = "length"

    def result(self) -> Generation:
        """What the engine gives for it."""
        return Generation(
            ids=tuple(self.tokens[len(self.prompt) :]),
            logprobs=tuple(self.logprobs),
            finish="stop" if self.finish == "stop" else "length",
            stopped_by=self.stopped_by,
            versions=tuple(self.versions),
            cached=self.cached or 0,
            routes=self.routes,
            sampling_masks=encode(self.kept) if self.kept else b"",
        )
