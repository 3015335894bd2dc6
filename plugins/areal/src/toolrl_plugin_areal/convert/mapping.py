"""AReaL's settings as a toolrl config, section by section."""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path
from typing import Any

from toolrl_common.conversion import SMALLEST, Number, count, count_rows, user_path
from toolrl_plugin_areal.convert.algorithm import algorithm, lora
from toolrl_plugin_areal.convert.settings import ArealConversion

_OPTIM = "actor.optimizer"
_NO_LIMIT = 100_000_000
"""AReaL's top_k for none."""
_EVAL_TEMPERATURE = 0.6
"""Fixed in AReaL's script."""
_TOOLS = ("python", "calculator")
_ELSEWHERE = ("sandbox_python", "daytona_python")
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_PACKAGES = ("sympy", "numpy")
_CPU_SECONDS = 30
"""The tool's own limit of processor time."""
_LONGEST = 3600.0


def convert(settings: ArealConversion) -> tuple[dict[str, Any], ArealConversion]:
    """Convert all sections. Raises ConfigError for a config that trains something else."""
    _refuse_other(settings)
    batch = settings.whole("train_dataset.batch_size", least=1)
    rows, epochs = count_rows(settings.get("train_dataset.path")), settings.whole("total_train_epochs", least=1)
    steps, epoch = settings.steps(settings.whole("total_train_steps", default=0), epochs, batch, rows)
    config: dict[str, Any] = {
        "model": _model(settings),
        "data": _data(settings),
        "environments": {"default": _environment(settings)},
        "rollout": _rollout(settings),
        "algorithm": algorithm(settings),
        "trainer": {"prompts_per_step": batch, **_trainer(settings, steps, epoch)},
        "evaluation": _evaluation(settings, epoch),
        "run": {"name": settings.run_name("experiment_name")},
        "seed": settings.whole("seed", least=0),
    }
    settings.lose_unused()
    return config, settings


def _refuse_other(settings: ArealConversion) -> None:
    """Raise ConfigError for a config that trains something else than a policy by its rewards, or by a loss that toolrl
    doesn't have."""
    kind, instead = settings.get("train_dataset.type") or "rl", "AReaL's configs of type `rl` can be converted."
    if settings.flag("actor.is_critic"):
        settings.refuse("actor.is_critic", "the config trains a reward model; toolrl trains policies", instead)
    if kind == "dpo" or settings.given("actor.beta"):
        key = "train_dataset.type" if kind == "dpo" else "actor.beta"
        settings.refuse(key, "the config trains on pairs of answers (DPO); toolrl doesn't", instead)
    if kind == "rw":
        settings.refuse("train_dataset.type", "the config trains a reward model (rw); toolrl trains policies", instead)
    if kind == "sft":
        why = "the config fine-tunes on demonstrations (sft)"
        settings.refuse("train_dataset.type", why, "`toolrl sft` does that.")
    if kind != "rl":
        settings.refuse("train_dataset.type", f"unknown type {str(kind)!r}; expected rl", instead)
    if settings.flag("actor.use_sapo_loss"):
        hint = "Convert with actor.use_sapo_loss=false to train with PPO's clipped loss in its place."
        settings.refuse("actor.use_sapo_loss", "toolrl doesn't have the loss of SAPO", hint)
    if settings.get("actor.m2_threshold") is not None:
        hint = "Convert with actor.m2_threshold=null to train without it."
        settings.refuse("actor.m2_threshold", "toolrl doesn't have M2PO's mask", hint)


def _model(settings: ArealConversion) -> dict[str, Any]:
    model: dict[str, Any] = {"path": settings.model_path("actor.path")}
    dtype = settings.get("actor.dtype")
    if dtype == "float32":
        model["dtype"] = dtype
    elif dtype != "bfloat16":
        settings.lose("actor.dtype")
    if settings.flag("actor.gradient_checkpointing"):
        model["gradient_checkpointing"] = True
    model |= lora(settings)
    tokenizer = settings.get("tokenizer_path")
    if tokenizer not in (None, "", settings.get("actor.path")):
        settings.lose("tokenizer_path", f"{tokenizer!r} here, and the tokenizer is the model's")
    return model


def _data(settings: ArealConversion) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for ours, theirs in (("train", "train_dataset.path"), ("eval", "valid_dataset.path")):
        path = settings.get(theirs)
        if isinstance(path, str) and path:
            data[ours] = {"use": "areal_tir", "options": {"path": user_path(path)}}
            if _HUB_NAME.fullmatch(path) and not Path(path).exists():
                settings.remark(
                    f"data.{ours}: {path!r} isn't here; a data set of the Hub is loaded by `use: huggingface`"
                )
    if "train" not in data:
        settings.remark("data.train: the config names no data to train on")
    if not settings.flag("train_dataset.shuffle"):
        data["shuffle"] = False
    return data


def _rollout(settings: ArealConversion) -> dict[str, Any]:
    turn = settings.whole("gconfig.max_new_tokens", least=1)
    limits = {"max_turn_tokens": turn}
    if uses_tools(settings):
        longest = settings.whole("tir.max_length", least=2)
        limits = {"max_turn_tokens": min(turn, longest), "max_episode_tokens": longest}
    rollout = settings.numbers(
        Number("temperature", ("gconfig.temperature",), least=SMALLEST),
        Number("top_p", ("gconfig.top_p",), least=SMALLEST, most=1.0, below=1.0),
        Number("top_k", ("gconfig.top_k",), least=-1, whole=True, above=0, below=_NO_LIMIT),
        count("concurrency", "rollout.max_concurrent_rollouts", default=0),
    )
    if settings.get("actor.temperature") not in (None, settings.get("gconfig.temperature")):
        settings.lose("actor.temperature", "tokens are trained at the temperature they are sampled at", learned=True)
    if settings.flag("gconfig.greedy"):
        settings.lose("gconfig.greedy", "training samples at the rollout's temperature")
    return {**limits, **rollout, **_staleness(settings)}


def _trainer(settings: ArealConversion, steps: int, epoch: int | None) -> dict[str, Any]:
    trainer: dict[str, Any] = {"steps": steps, **_optimizer(settings, steps)}
    trainer |= settings.numbers(
        Number("updates_per_step", ("actor.ppo_n_minibatches",), least=1, whole=True, above=1),
        count("tokens_per_microbatch", "actor.mb_spec.max_tokens_per_mb", default=0),
    )
    every = _every(settings, "saver", epoch)
    return {**trainer, "save_every": every} if every else trainer


def _optimizer(settings: ArealConversion, steps: int) -> dict[str, Any]:
    kind, schedule = settings.get(f"{_OPTIM}.type"), settings.get(f"{_OPTIM}.lr_scheduler_type")
    if kind != "adam":
        settings.lose(f"{_OPTIM}.type")
    result = settings.numbers(
        Number("learning_rate", (f"{_OPTIM}.lr",), least=SMALLEST),
        Number("eps", (f"{_OPTIM}.eps",), least=SMALLEST),
        Number("weight_decay", (f"{_OPTIM}.weight_decay",)),
        Number("max_grad_norm", (f"{_OPTIM}.gradient_clipping",), least=SMALLEST),
    )
    result["betas"] = [settings.number(f"{_OPTIM}.{name}", most=0.999999) for name in ("beta1", "beta2")]
    share = settings.number(f"{_OPTIM}.warmup_steps_proportion", most=1.0)
    if share:
        result["warmup_steps"] = settings.warmup(share, steps)
    rate = settings.number(f"{_OPTIM}.min_lr_ratio", most=1.0)
    if schedule in ("linear", "cosine"):
        result |= {"schedule": schedule, "min_rate": rate}
    elif schedule != "constant":
        settings.lose(f"{_OPTIM}.lr_scheduler_type")
    return result


def _every(settings: ArealConversion, section: str, epoch: int | None) -> int:
    """Return the steps between two savings or evaluations; 0 if AReaL's don't come by steps."""
    steps, epochs = (settings.whole(f"{section}.freq_{of}", default=0) for of in ("steps", "epochs"))
    if steps > 0:
        return steps
    if epochs > 0:
        if epoch is not None:
            return epochs * epoch
        settings.lose(f"{section}.freq_epochs", "its data can't be read here")
    if settings.get(f"{section}.freq_secs") is not None:
        settings.lose(f"{section}.freq_secs")
    return 0


def _evaluation(settings: ArealConversion, epoch: int | None) -> dict[str, Any]:
    every = _every(settings, "evaluator", epoch)
    return {**({"every": every} if every else {}), "temperature": _EVAL_TEMPERATURE}


def _staleness(settings: ArealConversion) -> dict[str, int]:
    """Convert the bound on how old the weights are that sampled an episode."""
    versions = settings.whole("rollout.max_head_offpolicyness", default=0, least=0)
    if not versions or not settings.flag("async_training", default=True):
        return {}
    return {"max_staleness": versions}


def uses_tools(settings: ArealConversion) -> bool:
    """Tell whether the config plays with tools: it has the section `tir`, or names no data at all."""
    return settings.given("tir") or not settings.given("train_dataset.path")


def _environment(settings: ArealConversion) -> dict[str, Any]:
    """Convert tools, chat format and reward to `environments.default`."""
    if not uses_tools(settings):
        note = "the start script names it, and the config samples one answer without tools; convert with "
        settings.lose("workflow", f"{note}tir.enable_tools=python for tool-integrated reasoning", learned=True)
        return {"parser": "areal_tir", "chat_format": "template", "rewards": [_reward(settings)], "max_turns": 1}
    calls = settings.whole("tir.max_turns", least=0)
    return {
        "parser": "areal_tir",
        "chat_format": "tir" if settings.flag("tir.is_chat_model") else "torl",
        "tools": _tools(settings),
        "end_flags": ["boxed"],
        "rewards": [_reward(settings)],
        "max_turns": calls + 1,  # AReaL counts calls, of which an answer is none.
    }


def _tools(settings: ArealConversion) -> list[dict[str, Any]]:
    key = "tir.enable_tools"
    given = _TOOLS if settings.null(key) else settings.get(key)
    listed = given if isinstance(given, list | tuple) else str(given).split(";")
    names = [str(name).strip() for name in listed if str(name).strip()]
    names = ["python" if name in _ELSEWHERE else name for name in names]
    unknown = [name for name in names if name not in _TOOLS]
    if unknown:
        settings.lose(key, f"name the class of {', '.join(unknown)} by the tool `areal_tool`")
    names = [name for name in _TOOLS if name in names]
    if not names:
        settings.lose(key, "the config has python")
        names = ["python"]
    seconds = settings.number("tir.tool_timeout", least=SMALLEST, most=_LONGEST)
    calculator = {"use": "calculator", "policy": {"timeout": seconds}}
    return [_python(seconds) if name == "python" else calculator for name in names]


def _python(seconds: float) -> dict[str, Any]:
    packages = [name for name in _PACKAGES if importlib.util.find_spec(name) is not None]
    options: dict[str, Any] = {"timeout": seconds}
    if seconds > _CPU_SECONDS:
        options["cpu_seconds"] = math.ceil(seconds)
    if packages:
        options["packages"] = packages
    return {"use": "python", "options": options}


def _reward(settings: ArealConversion) -> dict[str, Any]:
    scaling = settings.number("actor.reward_scaling", least=-math.inf)
    bias = settings.number("actor.reward_bias", least=-math.inf)
    options = {name: value for name, value, plain in (("scaling", scaling, 1.0), ("bias", bias, 0.0)) if value != plain}
    return {"use": "areal_tir", **({"options": options} if options else {})}
