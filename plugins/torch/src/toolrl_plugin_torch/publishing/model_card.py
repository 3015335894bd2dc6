"""The model card of an exported model, from the run that trained it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from toolrl.loop.checkpoints import step_of
from toolrl.runs.folder import RunFolder, config_text, is_run_folder, run_and_checkpoint
from toolrl.runs.formatting import format_metric
from toolrl.runs.metrics import MetricsLine
from toolrl_plugin_torch.adapters.lora import CONFIG_FILE

_ON_HUB = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_CACHED = re.compile(r".*/models--([\w.-]+?)--([\w.-]+)/snapshots/\w+/?")
_VARIABLE = re.compile(r"\$\{(\w+):-[^}]*\}")
_CREDENTIAL = re.compile(r"(^|_)(api_?key|key|token|secret|passw(or)?d|authorization|cookie)$", re.IGNORECASE)
_FILES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
_METRIC_TYPES = {"reward/mean": "mean_reward"}


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
    def takes_images(self) -> bool:
        config = self.folder / "config.json"
        return config.is_file() and "vision_config" in json.loads(config.read_bytes())


def run_of(source: str) -> RunFolder | None:
    """The run that a path names: its folder, `RUN:best`, or the folder of one of its checkpoints."""
    if (found := run_and_checkpoint(source)) is not None:
        return RunFolder.open(found[0])
    path = Path(source).absolute()
    is_checkpoint = path.match("checkpoints/step-*") and is_run_folder(path.parents[1])
    return RunFolder.open(path.parents[1]) if is_checkpoint else None


def origin(source: str, *places: Path) -> str:
    """The model that a chain of runs began with: a folder, or a name. Relative paths may start at each of `places`."""
    for place in (Path(), *places):
        path = str(place / source)
        if (run := run_of(path)) is not None:
            return origin(str(run.config["model"]["path"]), *run.directory.parents)
        if Path(path).exists():
            return path
    return source


def hub_base(source: str, *places: Path) -> str | None:
    """The Hub's name of the model that a run, a chain of runs or a path began with; None for another folder."""
    found = origin(source, *places)
    if (cached := _CACHED.fullmatch(found)) is not None:
        return f"{cached[1]}/{cached[2]}"
    return found if _ON_HUB.fullmatch(found) and not Path(found).exists() else None


def model_card(export: Export, name: str) -> ModelCard:
    """The card of `name`: metadata with the held-out metrics as evaluation results, and what the run was."""
    run, lines = export.run, _evaluations(export)
    task = "image-text-to-text" if export.takes_images else "text-generation"
    sets = [found for found in _data_sets(run).values() if (found or {}).get("on_hub")]
    data = ModelCardData(
        base_model=export.base_model,
        base_model_relation="adapter" if export.is_adapter else "finetune",
        datasets=sorted({each["name"] for each in sets}) or None,
        library_name="peft" if export.is_adapter else "transformers",
        pipeline_tag=task,
        tags=["toolrl", "tool-use", *_method_tags(run)],
        model_name=name,
        eval_results=list(_results(run, lines[-1], task)) if lines else None,
    )
    if export.base_model is None:
        del data.base_model_relation
    text = "\n\n".join([*_head(export, name), *_metrics(run, lines), *_use(export, name), *_run(export)])
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}\n")


def _method_tags(run: RunFolder) -> list[str]:
    if not run.metrics_lines("train"):
        return ["sft"]
    return ["reinforcement-learning", str(run.config["algorithm"].get("preset") or "policy-gradient")]


def _evaluations(export: Export) -> list[MetricsLine]:
    """The first evaluation and the last one up to the checkpoint; only one where they are the same."""
    step = step_of(export.checkpoint.resolve())
    lines = sorted((line for line in export.run.metrics_lines("eval") if line.step <= step), key=lambda it: it.step)
    return lines if len(lines) < 2 else [lines[0], lines[-1]]


def _data_sets(run: RunFolder) -> dict[str, Any]:
    """By role the data sets that were used: `name`, `on_hub`, `config` and `split`."""
    data, tuned = run.config["data"], "sft" in _method_tags(run)
    roles = {
        "Training data": (run.config["sft"] or {}).get("data") if tuned else data["train"],
        "Held-out tasks": data["eval"] if run.metrics_lines("eval") else None,
    }
    found = {}
    for role, used in roles.items():
        if used:
            options = used["options"]
            path = str(options.get("path") or "")
            named = used["use"] == "huggingface" and Path(path).suffix not in _FILES
            on_hub = named and hub_base(path, *run.directory.parents) is not None
            name = path if on_hub else " ".join(filter(None, [used["use"], Path(path).name]))
            about = {key: options.get(key) for key in ("config", "split")}
            found[role] = {"name": name, "on_hub": on_hub, **about}
    return found


def _measured(line: MetricsLine) -> list[str]:
    """The names of the metrics to show: those with a standard error, but `avg@k` and `pass@1`, the accuracy again."""
    known = [name for name in line.metrics if f"{name}/stderr" in line.metrics]
    names = [name for name in known if not name.startswith("avg@") and name != "pass@1"]
    names = names or [name for name in ("accuracy", "reward/mean") if name in line.metrics]
    return [name for name in names if math.isfinite(line.metrics[name])]


def _results(run: RunFolder, line: MetricsLine, task: str) -> Iterator[EvalResult]:
    held_out = _data_sets(run)["Held-out tasks"]
    for name in _measured(line):
        yield EvalResult(
            task_type=task,
            dataset_type=held_out["name"],
            dataset_name=" ".join(filter(None, [held_out["name"], held_out["split"]])),
            dataset_config=held_out["config"],
            dataset_split=held_out["split"],
            metric_type=_METRIC_TYPES.get(name, name),
            metric_name=f"{name}, {line.episodes} episodes",
            metric_value=format_metric(line.metrics, name),
        )


def _head(export: Export, name: str) -> Iterator[str]:
    run, config = export.run, export.run.config
    base, path = export.base_model, str(config["model"]["path"])
    places = run.directory.parents
    began = f"[{base}](https://huggingface.co/{base})" if base else f"`{Path(origin(path, *places)).name}`"
    before = next((found for place in (Path(), *places) if (found := run_of(str(place / path))) is not None), None)
    learned = "fine-tuned on demonstrations" if "sft" in _method_tags(run) else "trained by reinforcement learning"
    tools = sorted({tool["use"] for each in config["environments"].values() for tool in each["tools"]})
    to_use = f" to use the {'tool' if len(tools) == 1 else 'tools'} {_code(tools)} over several turns" if tools else ""
    yield f"# {name}"
    yield f"{began}, {learned}{to_use} with toolrl."
    rows = {
        "Base model": began,
        "Continues the run": before and f"`{before.name}`",
        "Algorithm": _algorithm(run),
        "Steps": f"{step_of(export.checkpoint.resolve())} of {run.total_steps}",
        "Tools": _code(tools),
        "Rewards": _code(sorted(_rewards(config))),
        **{role: _data_text(each) for role, each in _data_sets(run).items()},
    }
    if lora := config["model"].get("lora"):
        rows["LoRA"] = (
            f"rank {lora['rank']}, alpha {lora['alpha']:g}, {'adapter alone' if export.is_adapter else 'merged'}"
        )
    yield "| | |\n|---|---|\n" + "\n".join(f"| {key} | {value} |" for key, value in rows.items() if value)


def _code(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _rewards(config: Mapping[str, Any]) -> set[str]:
    parts = [part for each in config["environments"].values() for part in each["rewards"]]
    return {part["use"] if part["weight"] == 1 else f"{part['use']} × {part['weight']:g}" for part in parts}


def _data_text(found: Mapping[str, Any]) -> str:
    name = found["name"]
    text = f"[{name}](https://huggingface.co/datasets/{name})" if found["on_hub"] else f"`{name}`"
    return ", ".join([text, *(f"{key} `{found[key]}`" for key in ("config", "split") if found[key])])


def _algorithm(run: RunFolder) -> str:
    if "sft" in _method_tags(run):
        sft = run.config["sft"]
        return f"supervised fine-tuning, learning rate {sft['learning_rate']:g}, batches of {sft['batch_size']}"
    algorithm, trainer = run.config["algorithm"], run.config["trainer"]
    return (
        f"{algorithm['preset']}, {trainer['prompts_per_step']} prompts × {algorithm['group_size']} episodes a step, "
        f"learning rate {trainer['learning_rate']:g}"
    )


def _metrics(run: RunFolder, lines: list[MetricsLine]) -> Iterator[str]:
    if not lines:
        return
    yield "## Held-out tasks"
    header = ["", *(f"step {line.step}" for line in lines)]
    rows = [[name, *(format_metric(line.metrics, name) if name in line.metrics else "" for line in lines)]
            for name in _measured(lines[-1])]  # fmt: skip
    yield "\n".join("| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows))
    temperature = run.config["evaluation"]["temperature"]
    sampled = f", sampled at temperature {temperature:g}" if temperature is not None else ""
    held_out = _data_text(_data_sets(run)["Held-out tasks"])
    yield f"{lines[-1].episodes} episodes of {held_out}{sampled}. ±: standard error, clustered by task."


def _use(export: Export, name: str) -> Iterator[str]:
    tokenizer, loader = "AutoTokenizer", "AutoModelForCausalLM"
    if export.takes_images:
        tokenizer, loader = "AutoProcessor", "AutoModelForImageTextToText"
    imports = f"from transformers import {loader}, {tokenizer}"
    if export.is_adapter:
        loader = "AutoPeftModelForCausalLM"
        imports = f"from peft import {loader}\nfrom transformers import {tokenizer}"
    yield "## How to use"
    yield f"""```python
{imports}

tokenizer = {tokenizer}.from_pretrained("{name}")
model = {loader}.from_pretrained("{name}", dtype="auto")
messages = [{{"role": "user", "content": "…"}}]
tools = []  # the JSON schemas of the tools, or Python functions with type hints and docstrings
prompt = tokenizer.apply_chat_template(
    messages, tools=tools or None, add_generation_prompt=True, return_dict=True, return_tensors="pt"
)
output = model.generate(**prompt, max_new_tokens=512)
print(tokenizer.decode(output[0, prompt["input_ids"].shape[1]:]))
```"""
    yield (
        f"With its tools, in the loop that it was trained in: save the config below as `config.yaml`, then run "
        f"`toolrl eval config.yaml --set model.path={name}`."
    )


def _run(export: Export) -> Iterator[str]:
    versions = export.run.versions()
    libraries = {"python": versions.get("python"), **versions.get("libraries", {})}
    yield "## The run"
    yield "Versions: " + ", ".join(f"{name} {version}" for name, version in libraries.items() if version) + "."
    text = config_text(_public(export.run.config)).replace("````", "` ` ` `")
    yield f"<details><summary>Config</summary>\n\n````yaml\n{text}````\n\n</details>"
    yield "Of absolute paths the config shows the last part, of environment variables the names, and no credentials."


def _public(node: Any, key: str = "") -> Any:
    """A config without what belongs to the machine it ran on."""
    if isinstance(node, Mapping):
        return {name: _public(value, str(name)) for name, value in node.items()}
    if isinstance(node, list):
        return [_public(value, key) for value in node]
    if not isinstance(node, str):
        return node
    text = _VARIABLE.sub(r"${\1}", node)
    if _CREDENTIAL.search(key) and "${" not in text:
        return "***"
    one_line = "\n" not in text and text.startswith(("/", "~/"))
    return Path(text).name if one_line else text.replace(str(Path.home()), "~")
