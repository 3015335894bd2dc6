"""The observer `verl_dump`: `<step>.jsonl` with `input`, `output`, `gts`, `score`, `step`, as verl's trainer has it.

One file a step, one line an episode, in the order of groups; metrics of the episode's rewards stand beside as verl's
extra infos do. A file appears when its step is done, whole. Episodes that failed are left out: they have no score.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from toolrl.protocols import BuildContext, RunInfo, StepReport
from toolrl.runs.files import write_atomic
from toolrl.types import Episode
from toolrl_plugin_verl.options import VerlDumpOptions

_OWN = ("input", "output", "gts", "score", "step")


class VerlDump:
    """Keeps a step's lines until the step is done."""

    def __init__(self, options: VerlDumpOptions | None, context: BuildContext) -> None:
        self._options = options or VerlDumpOptions()
        self._tokenizer = context.tokenizer
        self._lines: list[tuple[str, int, dict[str, Any]]] = []

    def toolrl_episode_end(self, run: RunInfo, episode: Episode) -> None:
        """Note the episode."""
        if episode.failure is None:
            self._lines.append((episode.group, episode.index, self._line(episode)))

    def toolrl_step_end(self, run: RunInfo, report: StepReport) -> None:
        """Write the step's file."""
        lines, self._lines = self._lines, []
        folder = self._folder(run, report.kind)
        if folder is None or not lines:
            return
        # Episodes come as they end; those of one group belong together.
        order = {group: number for number, group in reversed(list(enumerate(group for group, _, _ in lines)))}
        lines.sort(key=lambda item: (order[item[0]], item[1]))
        folder.mkdir(parents=True, exist_ok=True)
        texts = [json.dumps({**line, "step": report.step}, ensure_ascii=False, default=str) for _, _, line in lines]
        write_atomic(folder / f"{report.step}.jsonl", "".join(f"{text}\n" for text in texts), durable=False)

    def _line(self, episode: Episode) -> dict[str, Any]:
        line: dict[str, Any] = {
            "input": prompt_text(episode, self._tokenizer),
            "output": response_text(episode, self._tokenizer),
            "gts": episode.task.answer,
            "score": episode.reward,
            "step": 0,
        }
        for name, value in episode.metrics.items():
            short = name.rpartition("/")[2]
            key = name if short in line or name.startswith("tool/") else short
            if key not in _OWN and math.isfinite(value):
                line.setdefault(key, value)
        return line

    def _folder(self, run: RunInfo, kind: str) -> Path | None:
        options, default = self._options, None if kind == "eval" else run.directory / "rollout_data"
        given = options.validation_data_dir if kind == "eval" else options.rollout_data_dir
        return Path(given).expanduser() if given else default


# An episode's tokens as texts, as verl decodes them: control tokens left out.


def prompt_text(episode: Episode, tokenizer: Any) -> str:
    """What stood before the first sampled token. Without a tokenizer, the task's messages."""
    if tokenizer is None:
        return "\n".join(f"{message.role}\n{message.content}" for message in episode.task.messages)
    return _decoded(tokenizer, episode.main.ids[: episode.main.prompt_length])


def response_text(episode: Episode, tokenizer: Any) -> str:
    """Everything after the prompt, what tools answered included. Without a tokenizer, what the model wrote."""
    if tokenizer is None:
        return episode.model_text
    return _decoded(tokenizer, episode.main.ids[episode.main.prompt_length :])


def _decoded(tokenizer: Any, ids: tuple[int, ...]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=True))
