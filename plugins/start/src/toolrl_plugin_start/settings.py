"""The sections of a first config, with sizes that fit the model, the data and the memory, and why."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import Any

import yaml

from toolrl.cli.output import UsageError
from toolrl_plugin_start.data_columns import Columns, is_csv
from toolrl_plugin_start.hardware import GIB, Machine, Model

SMALL, TINY = 50_000_000, 5_000_000
_BYTES_FULL, _BYTES_LORA = 16, 5
"""Of memory for each parameter in float32: weights, gradient, AdamW's two averages; frozen weights and an adapter."""


SHORTEST_TURN = 16
"""Tokens of a turn below which a model can't make a call."""


@dataclass
class Section:
    """A top-level key of the config, and the comment above it."""

    comment: str
    value: Any


@dataclass
class Wanted:
    """What the user asked for."""

    model: str
    data: str
    columns: Columns
    tools: list[str]
    reward: str
    name: str
    steps: int | None = None
    evaluation: str | None = None
    gpu: str | None = None
    """A GPU to plan for in the place of those here, as `toolrl plan --gpu` takes it."""
    facts: Model = field(default_factory=Model)
    here: Machine = field(default_factory=lambda: Machine(0.0))

    @property
    def on_gpu(self) -> bool:
        """Whether the run is for a GPU."""
        return self.gpu is not None or bool(self.here.gpus)


def sections(wanted: Wanted) -> dict[str, Section]:
    """The config by section."""
    evaluation = Section("Steps between evaluations; there is one at the start and at the end, too.", {"every": 10})
    return {
        "model": _model(wanted),
        "data": _data(wanted),
        "environments": _environment(wanted),
        "rollout": _rollout(wanted),
        "algorithm": _algorithm(wanted),
        "trainer": _trainer(wanted),
        **({"evaluation": evaluation} if wanted.evaluation else {}),
        "run": Section("The results: runs/NAME, with report.html.", {"name": wanted.name}),
    }


def text(parts: dict[str, Section], *, head: str) -> str:
    """The sections as YAML."""
    blocks = [head]
    for name, section in parts.items():
        comment = "\n".join(f"# {line}" for line in textwrap.wrap(section.comment, 116))
        dumped = yaml.safe_dump({name: section.value}, sort_keys=False, allow_unicode=True, width=110)
        blocks.append(f"{comment}\n{dumped.rstrip().replace('${', '$${')}")  # a name's own, no variable
    return "\n\n".join(blocks) + "\n"


def own_use(name: str) -> Any:
    """A tool or a reward as a config names it; own Python by `file.py:name`."""
    return {"use": "function", "options": {"target": name}} if ":" in name else name


def data_set(path: str) -> str:
    """The data set that reads a file."""
    return "huggingface" if is_csv(path) else "parquet" if path.endswith(".parquet") else "jsonl"


def check_room(facts: Model, columns: Columns, tools: int) -> None:
    """Raise UsageError where the longest of the first questions leaves no room for an answer in the model's context."""
    prompt = _prompt_tokens(facts, columns, tools)
    if facts.context is not None and prompt + 4 * SHORTEST_TURN > facts.context:
        raise UsageError(
            f"the longest of the first questions takes about {prompt} tokens with the tools' descriptions, and the "
            f"model's context is {facts.context}: that can't work",
            hint="Take a model with a longer context, shorter questions, or fewer tools.",
        )


def _prompt_tokens(facts: Model, columns: Columns, tools: int) -> int:
    # A vocabulary of a few hundred tokens reads nearly character by character.
    chars = 3 if (facts.vocabulary or 32_000) > 2_000 else 1
    return columns.question_chars // chars + 200 * max(1, tools)


def _model(wanted: Wanted) -> Section:
    value: dict[str, Any] = {"path": wanted.model}
    comment = (
        "The model to train: a folder, owner/name of the Hugging Face Hub, or a run's folder. "
        f"This one: {wanted.facts.describe()}."
    )
    parameters = wanted.facts.parameters
    if parameters is not None and not wanted.on_gpu:
        full, room = parameters * _BYTES_FULL / GIB, 0.7 * wanted.here.ram
        comment += (
            f" All weights are trained: on a CPU that takes about {max(full, 0.1):.1f} of {wanted.here.ram:.0f} GiB."
        )
        if full > room:
            value["lora"] = {}
            comment = comment.replace("All weights are trained: on a CPU that takes", "Training all weights takes")
            comment += (
                f" So an adapter is trained, in about {parameters * _BYTES_LORA / GIB:.1f} GiB (needs toolrl[lora])."
            )
    return Section(comment, value)


def _data(wanted: Wanted) -> Section:
    columns = wanted.columns
    options: dict[str, Any] = {"path": wanted.data}
    if columns.fields:
        options["fields"] = columns.fields
    value: dict[str, Any] = {"train": {"use": data_set(wanted.data), "options": options}}
    judged = f"answers in {columns.answer!r}" if columns.answer else "no answers"
    comment = f"Tasks: {columns.rows} rows, questions in {columns.question!r}, {judged}. `fields` maps other columns."
    if columns.unseen:
        comment += f" The model isn't shown {', '.join(columns.unseen)}; rewards may read them."
    if wanted.evaluation:
        value["eval"] = {"use": data_set(wanted.evaluation), "options": {**options, "path": wanted.evaluation}}
    else:
        comment += (
            f" Add `eval: {{use: {data_set(wanted.data)}, options: {{path: FILE}}}}` with tasks that "
            "aren't trained on: only they show "
            "whether the model got better."
        )
    return Section(comment, value)


def _environment(wanted: Wanted) -> Section:
    coder = "<function=" in wanted.facts.chat_template or "qwen3-coder" in wanted.model.lower()
    parser, form = ("qwen3_coder", "<function=…> tags") if coder else ("hermes", "JSON in <tool_call> tags")
    reward: Any = wanted.reward
    judged = {"exact": "1 where the final turn is the answer", "math": "1 for mathematically the same answer"}
    if reward == "gsm8k":
        reward, judged["gsm8k"] = {"use": "gsm8k", "options": {"method": "flexible"}}, "1 for the right last number"
    if ":" in wanted.reward:
        reward = {**own_use(wanted.reward), "name": wanted.reward.rpartition(":")[2]}
    own = " `function` takes Python of your own." if any(":" in name for name in (*wanted.tools, wanted.reward)) else ""
    comment = (
        f"What an episode is made of. The parser {parser} reads calls written as {form}. Tools: what the model may "
        f"call.{own} Rewards: {wanted.reward} gives {judged.get(wanted.reward, 'the reward')}; their sum is "
        "what training raises. max_turns: turns of the model in an episode, calls included."
    )
    value = {"parser": parser, "tools": list(map(own_use, wanted.tools)), "rewards": [reward], "max_turns": 4}
    return Section(comment, {"default": value})


def _rollout(wanted: Wanted) -> Section:
    facts, columns = wanted.facts, wanted.columns
    prompt = _prompt_tokens(facts, columns, len(wanted.tools))
    turn = 512 if wanted.on_gpu else 128
    if facts.context is not None:
        turn = max(SHORTEST_TURN, min(turn, (facts.context - prompt) // 4))
    episode = -(-(prompt + 4 * (turn + 128)) // 128) * 128
    bound = ""
    if facts.context is not None and episode > facts.context:
        episode, bound = facts.context, f", and the model's context of {facts.context}"
    comment = (
        f"Lengths in tokens: {turn} for a turn; for an episode the longest of the first questions (about {prompt} "
        f"with the tools' descriptions) and four turns with answers{bound}. Raise them where `context_full` or "
        "`max_tokens` are frequent stop reasons."
    )
    return Section(comment, {"max_turn_tokens": turn, "max_episode_tokens": episode})


def _algorithm(wanted: Wanted) -> Section:
    size = 8 if wanted.on_gpu else 4
    comment = (
        f"GRPO: {size} episodes of each task are compared with each other; those better than their group's mean become "
        "likelier. Larger groups give steadier steps and take longer."
    )
    return Section(comment, {"preset": "grpo", "group_size": size})


def _trainer(wanted: Wanted) -> Section:
    parameters = wanted.facts.parameters
    tiny = parameters is not None and parameters < TINY
    rate = 3e-4 if tiny else 1e-5 if parameters is not None and parameters < SMALL else 1e-6
    gpu = wanted.on_gpu
    steps = wanted.steps or (100 if gpu else 10)
    value: dict[str, Any] = {"steps": steps, "prompts_per_step": 16 if gpu else 4, "learning_rate": rate}
    why = "few, as a CPU is slow: ten steps show that all parts work together" if not gpu else "a first look"
    comment = (
        f"{steps} steps ({why}) of {value['prompts_per_step']} tasks each. The learning rate fits a model of this size."
    )
    if not gpu:
        value["tokens_per_microbatch"] = 4096
        comment += " tokens_per_microbatch bounds the memory of activations."
    return Section(comment, value)
