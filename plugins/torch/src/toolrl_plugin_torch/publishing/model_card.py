"""The model card of an exported model, from the run that trained it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from toolrl.loop.checkpoints import step_of
from toolrl.runs.folder import RunFolder, is_run_folder, run_and_checkpoint
from toolrl.runs.formatting import format_metric
from toolrl.runs.metrics import MetricsLine
from toolrl_plugin_torch.adapters.lora import CONFIG_FILE

_ON_HUB = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


@dataclass(frozen=True)
class Export:
    """An exported model."""

    run: RunFolder
    checkpoint: Path
    folder: Path
    """Where it was written."""
    base_model: str | None
    """The Hub's name of the model that training began with, where known."""

    @property
    def is_adapter(self) -> bool:
        return (self.folder / CONFIG_FILE).is_file()

    @property
    def fine_tuned(self) -> bool:
        """Whether the run was `toolrl sft`."""
        return not self.run.metrics_lines("train")


def run_of(source: str) -> RunFolder | None:
    """The run that a path names: its folder, `RUN:best`, or the folder of one of its checkpoints."""
    if (found := run_and_checkpoint(source)) is not None:
        return RunFolder.open(found[0])
    path = Path(source).absolute()
    is_checkpoint = path.match("checkpoints/step-*") and is_run_folder(path.parents[1])
    return RunFolder.open(path.parents[1]) if is_checkpoint else None


def hub_base(source: str) -> str | None:
    """The Hub's name of the model that a run, a chain of runs or a path began with; None for another folder."""
    while (run := run_of(source)) is not None:
        source = str(run.config["model"]["path"])
    return source if _ON_HUB.fullmatch(source) and not Path(source).exists() else None


def model_card(export: Export, name: str) -> ModelCard:
    """The card of `name`: what the run was, and its held-out metrics."""
    config = export.run.config
    how = ["sft"] if export.fine_tuned else ["reinforcement-learning", str(config["algorithm"].get("preset"))]
    data = ModelCardData(
        base_model=export.base_model,
        library_name="peft" if export.is_adapter else "transformers",
        tags=["toolrl", "tool-use", *how],
        model_name=name,
    )
    text = "\n\n".join([*_head(export, name), *_metrics(export)])
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}\n")


def _head(export: Export, name: str) -> Iterator[str]:
    run, config, base = export.run, export.run.config, export.base_model
    began = f"[{base}](https://huggingface.co/{base})" if base else f"`{Path(config['model']['path']).name}`"
    learned = "fine-tuned on demonstrations" if export.fine_tuned else "trained by reinforcement learning"
    environments = config["environments"].values()
    libraries = {"python": run.versions().get("python"), **run.versions().get("libraries", {})}
    used = (config["sft"] or {}).get("data") if export.fine_tuned else config["data"]["train"]
    rows = {
        "Base model": began,
        "Algorithm": _algorithm(export),
        "Steps": f"{step_of(export.checkpoint.resolve())} of {run.total_steps}",
        "Tools": _code({tool["use"] for each in environments for tool in each["tools"]}),
        "Rewards": _code({part["use"] for each in environments for part in each["rewards"]}),
        "Training data": ", ".join(map(_data, used if isinstance(used, list) else [used] if used else [])),
        "Versions": ", ".join(f"{library} {version}" for library, version in libraries.items() if version),
    }
    yield f"# {name}"
    yield f"{began}, {learned} with toolrl."
    yield "| | |\n|---|---|\n" + "\n".join(f"| {key} | {value} |" for key, value in rows.items() if value)


def _code(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _data(used: dict[str, Any]) -> str:
    """A data set; of a path the last part alone, as the rest is the machine's own."""
    path = str(used["options"].get("path") or "")
    shown = path if _ON_HUB.fullmatch(path) and not Path(path).exists() else Path(path).name
    return f"`{used['use']}` {shown}".strip()


def _algorithm(export: Export) -> str:
    config = export.run.config
    if export.fine_tuned:
        sft = config["sft"]
        return f"supervised fine-tuning, learning rate {sft['learning_rate']:g}, batches of {sft['batch_size']}"
    algorithm, trainer = config["algorithm"], config["trainer"]
    return (
        f"{algorithm['preset']}, {trainer['prompts_per_step']} prompts × {algorithm['group_size']} episodes a step, "
        f"learning rate {trainer['learning_rate']:g}"
    )


def _metrics(export: Export) -> Iterator[str]:
    """The held-out metrics of the first evaluation and of the last one up to the checkpoint."""
    step = step_of(export.checkpoint.resolve())
    lines = sorted((line for line in export.run.metrics_lines("eval") if line.step <= step), key=lambda it: it.step)
    if not lines:
        return
    lines = lines[:1] + lines[1:][-1:]
    header = ["", *(f"step {line.step}" for line in lines)]
    rows = [[name, *(format_metric(line.metrics, name) if name in line.metrics else "" for line in lines)]
            for name in _measured(lines[-1])]  # fmt: skip
    yield "## Held-out tasks"
    yield "\n".join("| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows))
    yield f"{lines[-1].episodes} episodes. []: 95 % interval, ±: standard error, both clustered by task."


def _measured(line: MetricsLine) -> list[str]:
    """The names of the metrics to show: those with a standard error, but `avg@k` and `pass@1`, the accuracy again."""
    known = [name for name in line.metrics if f"{name}/stderr" in line.metrics]
    names = [name for name in known if not name.startswith("avg@") and name != "pass@1"]
    names = names or [name for name in ("accuracy", "reward/mean") if name in line.metrics]
    return [name for name in names if math.isfinite(line.metrics[name])]
