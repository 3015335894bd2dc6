"""What the observers of experiment trackers share: sample episodes as rows, one tracked run across resumes, failures
that training outlives.

    class MyTracker(Tracker):
        tracker = "mine"

        def open(self, run: RunInfo, config: dict[str, Any], kept: str | None) -> None: ...
        def send(self, report: StepReport, metrics: dict[str, float], rows: list[list[Any]]) -> None: ...
        def close(self, status: str, error: BaseException | None) -> None: ...
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from toolrl.protocols import BuildContext, RunInfo, StepReport
from toolrl.runs.files import read_json, write_atomic
from toolrl.types import Episode, Message

COLUMNS = (
    "step", "task", "prompt", "conversation", "answer", "expected", "reward", "correct", "calls", "stop_reason",
    "error",
)  # fmt: skip
"""Of a table of sample episodes. `conversation` holds what follows the prompt: thinking, calls, tools' results."""
KEPT = "trackers.json"
"""The file of the run folder with the id of the tracked run, by tracker."""

_log = logging.getLogger(__name__)
_CREDENTIAL = re.compile(
    r"(^|_)((api|access|secret|private)_?key|token|secret|passw(or)?d|auth|authorization|headers|env|env_vars)$", re.I
)
"""An option whose value is a secret."""
_IN_URL = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)|(?<=[?&])(\w*(?:token|key|secret|passw(?:or)?d)=)[^&#\s]+", re.I)
"""A user with a password, or a parameter that is a secret."""


class TrackerOptions(BaseModel):
    """Options of every tracker."""

    model_config = ConfigDict(extra="forbid")

    project: str = Field("toolrl", min_length=1, description="The project, or experiment, that the run belongs to.")
    name: str | None = Field(None, min_length=1, description="What the tracker calls the run; None for `run.name`.")
    samples: int = Field(8, ge=0, le=200, description="Sample episodes in a table; 0 for no tables.")
    sample_every: int = Field(
        10, ge=1, description="Training steps between tables; the first step and every evaluation have one."
    )
    sample_characters: int = Field(4000, ge=100, description="A longer text of a table is cut in the middle.")


class Tracker:
    """An observer that reports a run to a tracker. Subclasses define `open`, `send` and `close`; what these raise is
    logged once and ends nothing."""

    tracker: ClassVar[str]

    def __init__(self, options: Any, context: BuildContext) -> None:
        """`options` are a `TrackerOptions`."""
        self.options = options
        self._samples: dict[str, SampleRows] = {}
        self._directory = Path()
        self._is_open = False
        self._failures = 0

    def open(self, run: RunInfo, config: dict[str, Any], kept: str | None) -> None:
        """Start the tracked run, or continue that of the id `kept`. Calls `keep` with its id. `config` is the resolved
        one without secrets."""
        raise NotImplementedError

    def send(self, report: StepReport, metrics: dict[str, float], rows: list[list[Any]]) -> None:
        """Send the metrics of a report under their tracked names, and a table of `COLUMNS`; most have no rows."""
        raise NotImplementedError

    def close(self, status: str, error: BaseException | None) -> None:
        """End the tracked run: finished, interrupted or failed. Not called where `open` failed."""
        raise NotImplementedError

    def toolrl_run_start(self, run: RunInfo) -> None:
        """Start the tracked run. A run that continues from a checkpoint continues the tracked run, too."""
        self._directory = run.directory
        kept = _kept(run.directory, self.tracker) if run.start_step else None
        self._is_open = self.attempt(self.open, run, without_secrets(run.config), kept)

    def toolrl_episode_end(self, episode: Episode) -> None:
        """Keep the episode where it is one of the samples."""
        # The group's name begins with its round, as in train-12/0/TASK. Training may sample during an evaluation.
        kind = episode.group.partition("-")[0]
        if kind not in self._samples:
            self._samples[kind] = SampleRows(self.options.samples, self.options.sample_characters)
        self._samples[kind].add(episode)

    def toolrl_step_end(self, report: StepReport) -> None:
        """Send the report."""
        samples = self._samples.pop(report.kind, None)
        due = report.kind != "train" or report.step == 1 or report.step % self.options.sample_every == 0
        rows = samples.rows(report.step) if samples is not None and due else []
        if self._is_open:
            metrics = {f"{report.kind}/{name}": float(value) for name, value in report.metrics.items()}
            self.attempt(self.send, report, metrics, rows)

    def toolrl_run_end(self, error: BaseException | None) -> None:
        """End the tracked run with the run's status."""
        if self._is_open:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed" if error else "finished"
            self.attempt(self.close, status, error)
            self._is_open = False
        if self._failures > 1:
            _log.warning("%s: %d requests failed; metrics.jsonl has all metrics", self.tracker, self._failures)

    def keep(self, run_id: str) -> None:
        """Write the id of the tracked run into the run folder, for a resume."""
        write_atomic(self._directory / KEPT, json.dumps({**_all_kept(self._directory), self.tracker: run_id}))

    def attempt(self, work: Callable[..., None], *args: Any) -> bool:
        """Whether `work(*args)` succeeded. The first error is logged, the others are counted."""
        try:
            work(*args)
        except Exception as error:  # noqa: BLE001 - whatever a tracker's library raises
            self._failures += 1
            if self._failures == 1:
                reason = f"{type(error).__name__}: {error}"
                _log.warning("%s: %s; training continues, and later errors are only counted", self.tracker, reason)
            return False
        return True


class SampleRows:
    """Rows of some episodes, chosen by the checksum of task and index. The order in which episodes end has no
    influence: short ones aren't preferred, and each evaluation shows the same tasks."""

    def __init__(self, count: int, characters: int) -> None:
        self._count = count
        self._characters = characters
        self._kept: list[Episode] = []

    def add(self, episode: Episode) -> None:
        """Keep the episode if it is among the `count` lowest checksums."""
        self._kept = sorted([*self._kept, episode], key=_checksum)[: self._count]

    def rows(self, step: int) -> list[list[Any]]:
        """The rows of `COLUMNS`, in the order of their checksums."""
        return [[step, *self._row(episode)] for episode in self._kept]

    def _row(self, episode: Episode) -> list[Any]:
        task, failure = episode.task, episode.failure
        return [
            task.id,
            self._cut(_text(task.messages)),
            self._cut(episode.transcript(prompt=False)),
            self._cut(episode.answer if episode.answer is not None else episode.content_of("final")),
            self._cut("" if task.answer is None else str(task.answer)),
            episode.reward,
            episode.correct,
            len(episode.calls),
            episode.stop_reason,
            "" if failure is None else self._cut(f"{failure.component}: {failure.message}"),
        ]

    def _cut(self, text: str) -> str:
        text = text.encode("utf-8", "replace").decode()  # Half of a surrogate pair can't be written.
        left_out = len(text) - self._characters
        if left_out <= 0:
            return text
        half = self._characters // 2
        return f"{text[:half]} […{left_out} characters…] {text[-half:]}"


def _checksum(episode: Episode) -> tuple[int, str]:
    return zlib.crc32(f"{episode.task.id}#{episode.index}".encode()), episode.id


def _text(messages: Sequence[Message]) -> str:
    """One message's content, or all with their roles."""
    if len(messages) == 1:
        return messages[0].content
    return "\n".join(f"{message.role}: {message.content}" for message in messages)


def without_secrets(node: Any, secret: bool = False) -> Any:
    """A copy of a config in which `***` stands for keys, tokens, passwords, headers and environments that are written
    out. References such as `${NAME}` stay."""
    if isinstance(node, Mapping):
        return {key: without_secrets(it, secret or bool(_CREDENTIAL.search(str(key)))) for key, it in node.items()}
    if isinstance(node, list | tuple):
        return [without_secrets(it, secret) for it in node]
    if not isinstance(node, str) or "${" in node:
        return node
    return "***" if secret else _IN_URL.sub(lambda match: (match[1] or "") + "***", node)


def flat(config: Mapping[str, Any] | Sequence[Any], prefix: str = "") -> dict[str, Any]:
    """The scalars of a nested config by their dotted paths: `environments.default.tools.0.use`."""
    found: dict[str, Any] = {}
    for key, value in config.items() if isinstance(config, Mapping) else enumerate(config):
        if isinstance(value, Mapping | list | tuple):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


@contextlib.contextmanager
def prints_to_stderr() -> Iterator[None]:
    """What a library prints goes to standard error: standard output is the command's."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _kept(directory: Path, tracker: str) -> str | None:
    found = _all_kept(directory).get(tracker)
    return found if isinstance(found, str) else None


def _all_kept(directory: Path) -> dict[str, Any]:
    """What `keep` wrote; empty where it can't be read."""
    with contextlib.suppress(OSError, ValueError):
        found = read_json((directory / KEPT).read_bytes())
        return found if isinstance(found, dict) else {}
    return {}
