"""Learning on GSM8K: accuracy of the model as it is, after a cold start, and after as many steps of GRPO with a tool as
without.

Every stage is a command of toolrl on a config of `docs/examples/gsm8k`: demonstrations from the solutions' own
calculations, `sft` on them, then `train` with the tool and without side by side, each evaluating at its start and end.
A stage that is done leaves a file beside its run and isn't done again; one that the clock stops is sent SIGINT, writes
a checkpoint of its last step, and goes on from there with the next call.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from settings import PARTS, ROOT, NotHereError, NotYetError, Settings

EXAMPLES = ROOT / "docs" / "examples" / "gsm8k"
MARGIN = 60.0
"""Seconds that a run may need to write its checkpoint before the caller's time is over."""
PROMPTS = {
    "calculator": "You solve problems step by step. Use the calculator for every calculation.",
    "python": "You solve problems with a Python program.",
}
METRICS = ("accuracy", "reward/mean", "calls/mean", "calls/success", "turns/mean", "truncated", "tokens/sampled")


@dataclass(frozen=True)
class Stage:
    """One command."""

    name: str
    command: str
    config: str
    settings: dict[str, Any]
    """By path in the config."""
    resumes: bool = True


class Learning:
    """One model's stages, in a folder."""

    def __init__(self, settings: Settings) -> None:
        if settings.data is None:
            raise NotHereError("it needs --data FOLDER with GSM8K's train.jsonl and test.jsonl")
        self.folder = Path(settings.work) / f"learn-{Path(settings.model).name}-{settings.tool}"
        if settings.again:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._settings = settings
        left, limit = settings.seconds_left, PARTS["learn"].limit
        self._until = time.monotonic() + (limit if left is None else min(left, limit)) - MARGIN
        self.demonstrations = self.folder / "demonstrations.jsonl"

    def make_demonstrations(self) -> None:
        if not self.demonstrations.exists():
            unfinished = self.folder / "demonstrations.writing"
            command = [sys.executable, str(EXAMPLES / "cold_start.py"), str(self._settings.data), str(unfinished)]
            subprocess.run([*command, "--tool", self._settings.tool], check=True, stdout=sys.stderr)
            unfinished.rename(self.demonstrations)

    def do(self, *stages: Stage) -> None:
        """Stages side by side; those that are done are passed over. Raises NotYetError where the clock stops them,
        RuntimeError where one fails."""
        left = [stage for stage in stages if not (self.folder / f"{stage.name}.done").exists()]
        if left and time.monotonic() > self._until:
            raise NotYetError(f"next is {left[0].name}; call again to go on", self.figures())
        running = [(stage, self._start(stage)) for stage in left]
        processes = [process for _, process in running]
        try:
            stopped = self._wait(processes)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()  # without it there is no status, which would be taken for a good one
        for stage, process in running:
            if not process.returncode:
                (self.folder / f"{stage.name}.done").touch()
            elif not stopped:
                raise RuntimeError(f"{stage.name} failed:\n{self._log(stage).read_text()[-1200:]}")
        if stopped:
            raise NotYetError(f"stopped in {', '.join(s.name for s in left)}; call again to go on", self.figures())

    def _wait(self, processes: list[subprocess.Popen[bytes]]) -> bool:
        """Until all have ended; True where the clock ended them."""
        while any(process.poll() is None for process in processes):
            if time.monotonic() > self._until:
                for process in processes:
                    process.send_signal(signal.SIGINT)
                given = time.monotonic() + 0.75 * MARGIN
                while any(process.poll() is None for process in processes) and time.monotonic() < given:
                    time.sleep(0.1)
                return True
            time.sleep(0.1)
        return False

    def _log(self, stage: Stage) -> Path:
        return self.folder / f"{stage.name}.log"

    def _start(self, stage: Stage) -> subprocess.Popen[bytes]:
        run = self.folder / stage.name
        sets = {"run.dir": str(self.folder), "run.name": stage.name, "device": self._settings.device, **stage.settings}
        command = [sys.executable, "-m", "toolrl", stage.command, str(EXAMPLES / stage.config)]
        command += [part for key, value in sets.items() for part in ("--set", f"{key}={json.dumps(value)}")]
        if run.exists():
            command.append("--resume" if stage.resumes and (run / "checkpoints").exists() else "--overwrite")
        env = {**os.environ, "MODEL": self._settings.model, "GSM8K": str(self._settings.data),
               "DEMONSTRATIONS": str(self.demonstrations)}  # fmt: skip
        with self._log(stage).open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=env)

    def lines(self, stage: str, kind: str) -> list[dict[str, Any]]:
        """Metrics of a run, by step; none where it hasn't begun."""
        file = self.folder / stage / "metrics.jsonl"
        if not file.exists():
            return []
        found = [json.loads(line) for line in file.read_text().splitlines()]
        return sorted((line for line in found if line["kind"] == kind), key=lambda line: line["step"])

    def figures(self) -> dict[str, Any]:
        """What is there so far."""
        rows: list[dict[str, Any]] = []
        for moment, stages in {"as it is": ("before-tools", "before-plain"), "": ("tools", "plain")}.items():
            for stage in stages:
                for line in self.lines(stage, "eval"):
                    when = moment or ("after the cold start" if line["step"] == 0 else f"after {line['step']} steps")
                    kept = {name: line[name] for name in METRICS if name in line}
                    rows.append({"when": when, "step": line["step"], "tools": "tools" in stage, **kept})
        speed = {}
        for stage in ("cold-start", "tools", "plain"):
            steps = self.lines(stage, "sft" if stage == "cold-start" else "train")
            names = [name for name in ("time/step", "time/rollout", "time/update") if steps and name in steps[-1]]
            speed[stage] = {name: statistics.median(line[name] for line in steps[1:] or steps) for name in names}
        rewards = {
            stage: [line.get("reward/mean") for line in self.lines(stage, "train")] for stage in ("tools", "plain")
        }
        return {
            "tool": self._settings.tool,
            "steps": self._settings.steps,
            "rows": rows,
            "speed": speed,
            "rewards": rewards,
        }


def run(settings: Settings) -> dict[str, Any]:
    learning = Learning(settings)
    learning.make_demonstrations()
    with_tools, plain = _rollout(settings, tools=True), _rollout(settings, tools=False)
    evaluation = {"evaluation.tasks": 8 if settings.dry else 500, "evaluation.temperature": 0}
    learning.do(
        Stage("before-tools", "eval", "grpo.yaml", {**with_tools, **evaluation}, resumes=False),
        Stage("before-plain", "eval", "control.yaml", {**plain, **evaluation}, resumes=False),
    )
    learning.do(Stage("cold-start", "sft", "cold_start.yaml", _cold_start(settings)))
    training = {
        **evaluation, "model.path": str(learning.folder / "cold-start"), "algorithm.group_size": settings.group_size,
        "trainer.steps": settings.steps, "trainer.prompts_per_step": settings.prompts,
        "trainer.learning_rate": settings.learning_rate,
        "trainer.tokens_per_microbatch": 512 if settings.dry else 8192,
        "trainer.save_every": max(settings.steps // 6, 1), "trainer.keep_checkpoints": 1,
    }  # fmt: skip
    learning.do(
        Stage("tools", "train", "grpo.yaml", {**with_tools, **training}),
        Stage("plain", "train", "control.yaml", {**plain, **training}),
    )
    return learning.figures()


def _environment(tool: str) -> dict[str, Any]:
    return {"environments.default.tools": [tool], "environments.default.system_prompt": PROMPTS[tool]}


def _rollout(settings: Settings, *, tools: bool) -> dict[str, Any]:
    turns = {"environments.default.max_turns": 9 if settings.tool == "calculator" else 3} if tools else {}
    turn = 256 if settings.tool == "python" or not tools else 128
    return {
        **(_environment(settings.tool) if tools else {}),
        **turns,
        "engine": {"use": "transformers", "options": {"max_batch": 8 if settings.dry else 256}},
        "rollout.max_turn_tokens": 16 if settings.dry else turn,
        "rollout.max_episode_tokens": 480 if settings.dry else 1536,
        "observers": [],
    }


def _cold_start(settings: Settings) -> dict[str, Any]:
    dry = {"sft.steps": 2, "sft.batch_size": 4, "sft.warmup_steps": 1} if settings.dry else {}
    return {**_environment(settings.tool), **dry, "observers": []}


def _last(figures: dict[str, Any], *, tools: bool) -> float | None:
    """Accuracy after the last step; None before it was measured."""
    found = [row for row in figures["rows"] if row["tools"] is tools and row["step"] == figures["steps"]]
    return found[-1].get("accuracy") if found else None


def headline(figures: dict[str, Any]) -> str:
    with_tools, plain = _last(figures, tools=True), _last(figures, tools=False)
    if with_tools is None or plain is None:
        return f"{len(figures['rows'])} evaluations so far"
    points = 100 * (with_tools - plain)
    return f"{with_tools:.1%} with {figures['tool']}, {plain:.1%} without: {points:+.1f} points"
