"""The observer that writes the run folder.

Every run has one, registered before the observers that the config names: when these are notified of a step, the step is
on the disk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from toolrl.errors import DataError
from toolrl.protocols import RunInfo, StepReport
from toolrl.runs.folder import RunFolder
from toolrl.runs.metrics import describe_error, status_of
from toolrl.types import Episode

_log = logging.getLogger(__name__)

TokenPieces = Callable[[Sequence[int]], Sequence[str]]
"""The text of each of these token ids by itself, in their order."""


class RunRecorder:
    """Writes metrics, episodes and summary of a run into its folder.

    `token_pieces` gives the text of single tokens for readers of the folder; without it they show turns as text.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        save_episodes: bool = True,
        token_pieces: TokenPieces | None = None,
        clock: Callable[[], float] = time.monotonic,
        hide: Callable[[str], str] = str,
    ) -> None:
        """`hide` takes secrets out of the message of what ended the run."""
        self._hide = hide
        self._folder = folder
        self._save_episodes = save_episodes
        self._token_pieces = token_pieces
        self._clock = clock
        self._new_tokens: set[int] = set()
        self._started = clock()
        self._before = 0.0
        self._facts: dict[str, Any] = {}

    def toolrl_run_start(self, run: RunInfo) -> None:
        """Write the summary of a running run."""
        earlier = self._earlier() if self._folder.start_step else {}
        self._before = float(earlier.get("seconds", 0.0))
        self._started = self._clock()
        self._facts = {"started": earlier.get("started", _now())}
        if self._folder.start_step:
            self._facts["resumed_at"] = [*earlier.get("resumed_at", []), self._folder.start_step]
            self._facts["checkpoint"] = self._folder.start_step
        self._write_summary("running")

    def toolrl_episode_end(self, run: RunInfo, episode: Episode) -> None:
        """Append the episode to the running step's file."""
        if not self._save_episodes or not self._folder.in_place:
            return
        try:
            self._folder.episode_store.add(episode)
        finally:
            self._note_tokens(episode)

    def _note_tokens(self, episode: Episode) -> None:
        if self._token_pieces is not None:
            self._new_tokens.update(*(trajectory.ids for trajectory in episode.trajectories))

    def toolrl_step_end(self, run: RunInfo, report: StepReport) -> None:
        """Close the step's file of episodes, add its metrics, bring the summary up to date. Raises RunFolderLostError."""
        self._folder.check_in_place()
        count = 0
        try:
            count = self._folder.episode_store.close_step(report.step, report.kind)
            self._keep_tokens()
        finally:  # Episodes and texts that can't be written must not cost the step's metrics.
            self._folder.metrics.append(report, count)
            self._write_summary("running")

    def toolrl_checkpoint_saved(self, run: RunInfo, step: int, path: Path) -> None:
        """Note that there is one: a run without a checkpoint is replaced by the next one of its name."""
        self._facts["checkpoint"] = step

    def toolrl_run_end(self, run: RunInfo, error: BaseException | None) -> None:
        """Write the final summary, then release the folder."""
        if not self._folder.in_place or (
            not self._facts and (self._folder.replaces or self._folder.metrics_lines())
        ):
            # The run was rejected before it began or resumed: the folder still describes it. Or it is gone.
            self._folder.close()
            return
        try:
            try:
                self._folder.metrics.write_waiting()
                self._folder.episode_store.write_waiting()
            except OSError as unwritten:
                _log.error("the run's folder can't be written: %s", unwritten)
            if error is not None:
                self._facts["error"] = {key: self._hide(text) for key, text in describe_error(error).items()}
            self._facts["ended"] = _now()
            self._write_summary(status_of(error), final=True)
            self._keep_tokens()
        finally:
            self._folder.close()

    def _earlier(self) -> dict[str, Any]:
        """The summary of the process before. It only holds when the run began, so a broken one is no error."""
        try:
            return self._folder.summary()
        except DataError as error:
            _log.warning("the summary is written anew: %s", error)
            return {}

    def _keep_tokens(self) -> None:
        new = sorted(self._new_tokens - self._folder.known_tokens()) if self._new_tokens else []
        self._new_tokens.clear()
        if new and self._token_pieces is not None:
            self._folder.add_tokens(dict(zip(new, self._token_pieces(new), strict=True)))

    def _write_summary(self, status: str, *, final: bool = False) -> None:
        facts = {"status": status, **self._facts, "seconds": round(self._before + self._clock() - self._started, 3)}
        if unsaved := self._folder.episode_store.unsaved:
            facts["unsaved_episodes"] = unsaved
        self._folder.write_summary(facts, final=final)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
