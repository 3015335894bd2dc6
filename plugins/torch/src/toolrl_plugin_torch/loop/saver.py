"""Saving and resuming a run: when a checkpoint is due, and what it holds."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolrl.config.model import save_seconds
from toolrl.errors import CheckpointError, DataError, RunFolderLostError
from toolrl.loop.best import Best, better, read_best, write_best
from toolrl.loop.checkpoints import (
    LoopState,
    latest_checkpoint,
    load_state,
    prune,
    save_checkpoint,
)
from toolrl.loop.ranks import ONE, Ranks
from toolrl.runs.files import read_config
from toolrl_plugin_torch.base_trainer import BaseTrainer
from toolrl_plugin_torch.loop.batches import DataPosition, KeepsPosition

_log = logging.getLogger(__name__)
_FREE = ("run", "observers", "evaluation", "threads", "device", "cluster")
"""Sections of a config that don't change what is trained."""
_FREE_KEYS = ("use", "save_every", "keep_checkpoints", "keep_best", "offload")
"""Of the trainer's section, in the same way."""


@dataclass
class Saver:
    """Checkpoints of one run."""

    trainer: BaseTrainer
    directory: Path
    """The run's folder of checkpoints."""
    keep: int
    data: KeepsPosition
    """Knows how far the data has been used."""
    config: Mapping[str, Any]
    """The resolved config."""
    rows: int | None = None
    """Of the data set, whose number decides their order; None where this process doesn't know."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Of the data sets, by their places in the config, as far as this process knows them."""
    last_step: int = -1
    """Of the last checkpoint that was written or resumed."""
    ranks: Ranks = ONE
    """The processes that train together: all of them call `save` and `restore`."""
    best_by: str | None = None
    """The metric of evaluations, higher is better, whose best checkpoint is kept; None for none."""
    every: int | str = 0
    """Steps or a time, as in `trainer.save_every`."""
    _best: Best | None = None
    """Of the evaluations so far."""
    _saved_at: float = field(default_factory=time.monotonic)

    def judge(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Whether an evaluation is the best so far, so that the trainer as it is now should be saved. Raises
        ConfigError where it doesn't have the metric."""
        found = better(self._best, step, self.best_by, metrics) if self.best_by is not None else None
        self._best = found or self._best
        return found is not None

    def recall(self, evaluations: Mapping[int, Mapping[str, float]]) -> None:
        """Judge the evaluation of the step that was resumed: an earlier process may have been killed between the
        checkpoint and its record."""
        if self.best_by in evaluations.get(self.last_step, {}) and self.judge(
            self.last_step, evaluations[self.last_step]
        ):
            self.save()

    def due(self, error: BaseException | None) -> bool:
        """Whether the run, ended by `error` or by nothing, leaves steps that no checkpoint holds yet. Where the user
        ended it before its first step, its start counts as one; after an error there, one mends it and starts again."""
        if isinstance(error, RunFolderLostError):  # A checkpoint would begin a second folder, which nothing resumes.
            return False
        first = 0 if isinstance(error, asyncio.CancelledError) else 1
        return self.trainer.whole and self.trainer.step > self.last_step and self.trainer.step >= first

    def scheduled(self) -> bool:
        """Whether `every` asks for a checkpoint now. All ranks call it, and get the first one's answer."""
        step, seconds = self.trainer.step, save_seconds(self.every)
        if step == self.last_step:  # The best so far is saved as soon as it is found.
            return False
        if seconds is None:
            return bool(self.every) and step % int(self.every) == 0
        return self.ranks.by_first(lambda: time.monotonic() - self._saved_at >= seconds, f"the time at step {step}")

    def save(self) -> Path:
        """Write a checkpoint of the trainer's complete steps, and where it is the best say so. Raises
        CheckpointError."""
        step = self.trainer.step
        path = self.directory / f"step-{step:06d}"
        if step != self.last_step:  # else it stands already
            gathered = self.trainer.gather_state(self.directory)
            path = self.ranks.by_first(lambda: self._write(gathered), f"the end of the checkpoint of step {step}")
            self.last_step, self._saved_at = step, time.monotonic()
        best = self._best
        if best is not None and best.step == step:
            self.ranks.by_first(lambda: write_best(self.directory, best), f"the record of step {step}")
            self.ranks.by_first(
                lambda: prune(self.directory, self.keep, {best.step}, last=self.last_step), "deleting older checkpoints"
            )
        return path

    def _write(self, gathered: Any) -> Path:
        step = self.trainer.step
        position = self.data.position(step)
        state = LoopState(
            step=step,
            version=step,
            position=position.next,
            pending=position.pending,
            buffer=position.buffer,
            pass_rates=position.pass_rates,
            config_digest=config_digest(self.config),
            rows=self.rows,
            data=self.digests,
        )
        return save_checkpoint(
            self.directory,
            state,
            lambda folder: self.trainer.save(folder, gathered),
            keep=self.keep,
            spare=self._spared(),
            size=self.trainer.saved_bytes,
        )

    def _spared(self) -> set[int]:
        """Steps of the best checkpoint: of the recorded one, also where the config no longer keeps one, and of the one
        that is about to replace it."""
        return {best.step for best in (self._best, read_best(self.directory)) if best is not None}

    def restore(self) -> int:
        """Take up the last whole checkpoint, and which is the best so far: its step, 0 where there is none yet. Raises
        CheckpointError."""
        path = self.ranks.by_first(lambda: latest_checkpoint(self.directory), "the last checkpoint")
        if path is None:
            return 0
        state = load_state(path)
        try:
            self.data.resume(state.step, DataPosition(state.position, state.pending, state.buffer, state.pass_rates))
        except CheckpointError as error:
            error.where = str(path)
            raise
        if state.config_digest != config_digest(self.config):
            self._compare_config(state.config_digest, path.name)
        self._compare_data(state, path.name)
        self.trainer.load(path, state.step)
        found = self.ranks.by_first(lambda: read_best(self.directory), "the best checkpoint so far")
        self._best = found if found is not None and found.metric == self.best_by else None
        self.last_step = state.step
        return state.step

    def _compare_config(self, digest: str, name: str) -> None:
        """Warn of the settings that differ from those of the checkpoint `name` and change the training."""
        before = next((config for config in self._earlier_configs() if config_digest(config) == digest), None)
        if before is None:
            _log.warning("the run continues with a config that differs from that of %s", name)
            return
        old, new = (dict(_leaves(_deciding(config))) for config in (before, self.config))
        changed = [
            f"{path}: {_shown(old, path)} -> {_shown(new, path)}"
            for path in dict.fromkeys([*old, *new])
            if old.get(path, _MISSING) != new.get(path, _MISSING)
        ]
        _log.warning("settings that change the training differ from those of %s: %s", name, "; ".join(changed))

    def _earlier_configs(self) -> Iterator[dict[str, Any]]:
        """Configs that the run has had, the newest first. The one that the checkpoint was written with is among them
        unless somebody deleted it."""
        run = self.directory.parent
        older = sorted(run.glob("config.before-*.yaml"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in (run / "config.yaml", *older):
            with contextlib.suppress(DataError, OSError):
                yield read_config(path)

    def _compare_data(self, state: LoopState, name: str) -> None:
        """Remark on data sets that aren't what they were when the checkpoint `name` was written."""
        if None not in (state.rows, self.rows) and state.rows != self.rows:
            text = "the data set has %s rows now, and had %s when %s was written: from here on other rows are taken"
            _log.warning(text, self.rows, state.rows, name)
        for where, digest in self.digests.items():
            # Another number of rows says the same of the data set that is trained on.
            if state.data.get(where, digest) != digest and (where == "data.eval" or state.rows == self.rows):
                text = "%s: the data have changed since %s was written: from here on the run uses them as they are now"
                _log.warning(text, where, name)


def config_digest(config: Mapping[str, Any]) -> str:
    """Of what decides the training."""
    return hashlib.sha256(json.dumps(_deciding(config), sort_keys=True, default=str).encode()).hexdigest()


_MISSING = object()


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Settings of a config by their paths."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _shown(leaves: Mapping[str, Any], path: str) -> str:
    return repr(leaves[path])[:80] if path in leaves else "not set"


def _deciding(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a config decides the training. The number of steps is no part of it, so that a run can be made longer,
    unless the learning rate falls towards the last one."""
    kept = {key: value for key, value in config.items() if key not in _FREE}
    for section in ("trainer", "sft"):
        if isinstance(kept.get(section), Mapping):
            falls = kept[section].get("schedule", "constant") != "constant"
            dropped = _FREE_KEYS if falls else ("steps", *_FREE_KEYS)
            kept[section] = {key: value for key, value in kept[section].items() if key not in dropped}
    return kept
