"""`toolrl areal convert`: AReaL's settings as a toolrl config, section by section."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolrl.errors import ConfigError
from toolrl_common.conversion import (
    SMALLEST,
    Conversion,
    ConvertCommand,
    Number,
    Reading,
    count,
    count_rows,
    merged,
    read_script,
    read_text,
    user_path,
)

_HINT = "Give the YAML of AReaL's TIR example, or its start script."

DEFAULTS: dict[str, Any] = {
    "seed": 1,
    "total_train_epochs": 1,
    "gconfig.n_samples": 1,
    "gconfig.max_new_tokens": 16384,
    "gconfig.temperature": 1.0,
    "gconfig.top_p": 1.0,
    "gconfig.top_k": 100_000_000,
    "actor.dtype": "bfloat16",
    "actor.gradient_checkpointing": False,
    "actor.optimizer.type": "adam",
    "actor.optimizer.lr": 0.001,
    "actor.optimizer.weight_decay": 0.01,
    "actor.optimizer.beta1": 0.9,
    "actor.optimizer.beta2": 0.999,
    "actor.optimizer.eps": 1e-08,
    "actor.optimizer.min_lr_ratio": 0.0,
    "actor.optimizer.lr_scheduler_type": "constant",
    "actor.optimizer.warmup_steps_proportion": 0.001,
    "actor.optimizer.gradient_clipping": 1.0,
    "actor.ppo_n_minibatches": 4,
    "actor.eps_clip": 0.2,
    "actor.reward_scaling": 1.0,
    "actor.reward_bias": 0.0,
    "actor.kl_ctl": 0.1,
    "train_dataset.batch_size": 1,
    "train_dataset.shuffle": True,
    "tir.max_turns": 2,
    "tir.max_length": 3000,
    "tir.tool_timeout": 30,
    "tir.enable_tools": "python",
    "tir.is_chat_model": False,
}
"""Those of AReaL's own defaults that decide what a run does; a config that leaves them out means them."""


class ArealConversion(Conversion):
    """A null is AReaL's default, unless `null` asks for it."""

    system, defaults = "AReaL", DEFAULTS

    def get(self, *keys: str, default: Any = None) -> Any:
        """What the user gave, else AReaL's default."""
        value = super().get(*keys, default=default)
        return next((self.defaults[key] for key in keys if key in self.defaults), default) if value is None else value

    def given(self, *keys: str) -> bool:
        """Whether the user gave a value of one of these, or of a setting below it. A null is none."""
        return any(
            value is not None and (name in keys or name.startswith(tuple(f"{key}." for key in keys)))
            for name, value in self._given.items()
        )

    def null(self, key: str) -> bool:
        """Whether the user set it to null."""
        self._used.add(key)
        return key in self._given and self._given[key] is None


def read(path: str, overrides: Sequence[str]) -> Reading:
    """What a YAML holds, or the one that a start script names, with overrides. Raises ConfigError."""
    text = read_text(path, _HINT)
    if Path(path).suffix not in (".yaml", ".yml"):
        path, words = _start_command(text, path)
        text, overrides = read_text(path, _HINT), [*words, *overrides]
    reading = Reading(Path(path).parent)
    reading.tree = reading.read_yaml(path, text)
    reading.override(overrides)
    tree = reading.tree
    if isinstance(tree.get("tir_config"), dict):
        tree["tir"] = merged(tree["tir"] if isinstance(tree.get("tir"), dict) else {}, tree.pop("tir_config"))
    return reading


def _start_command(text: str, script: str) -> tuple[str, list[str]]:
    """The config file that the first command with `--config` names, and the overrides behind it. Raises ConfigError."""
    for command in read_script(text, script):
        words = iter(command)
        for word in words:
            option, equals, name = word.partition("=")
            if option == "--config":
                name = name if equals else next(words, "")
                return _found(name, script), [word for word in words if "=" in word]
    raise ConfigError(
        "no command here starts AReaL with `--config FILE`",
        where=script,
        hint="Give the script that runs `python3 … train_tir.py --config FILE …`, or that YAML.",
    )


def _found(name: str, script: str) -> str:
    """The file, from here or beside the script, which may be started from elsewhere."""
    beside = Path(script).parent
    for path in (Path(name), beside / name, beside / Path(name).name):
        if path.is_file():
            return str(path)
    raise ConfigError(
        f"its command names `--config {name}`, and there is no such file here",
        where=script,
        hint="Run this in the folder that the script is started in, or give that YAML.",
    )


_OPTIM = "actor.optimizer"
_NO_LIMIT = 100_000_000
"""AReaL's top_k for none."""
_EVAL_TEMPERATURE = 0.6
"""Fixed in AReaL's script."""
_CAP = 5.0
"""AReaL's own bound of a weight."""
_TOOLS = ("python", "calculator")
_ELSEWHERE = ("sandbox_python", "daytona_python")
_PACKAGES = ("sympy", "numpy")
_CPU_SECONDS = 30
"""The tool's own limit of processor time."""
_LONGEST = 3600.0


class ArealConvert(ConvertCommand):
    """The command."""

    system = "areal"
    config_help = "the YAML of AReaL's TIR example, or a shell script that starts it"
    overrides_help = "overrides over it, such as gconfig.n_samples=8"

    def convert(self, config: str, overrides: Sequence[str]) -> tuple[dict[str, Any], Conversion]:
        """Read and convert."""
        return convert(ArealConversion(read(config, overrides)))


def convert(settings: ArealConversion) -> tuple[dict[str, Any], ArealConversion]:
    """The config, and the conversion with its notes."""
    batch = settings.whole("train_dataset.batch_size", least=1)
    rows, epochs = count_rows(settings.get("train_dataset.path")), settings.whole("total_train_epochs", least=1)
    steps, epoch = settings.steps(settings.whole("total_train_steps", default=0), epochs, batch, rows)
    config: dict[str, Any] = {
        "model": _model(settings),
        "data": _data(settings),
        "environments": {"default": _environment(settings)},
        "rollout": _rollout(settings),
        "algorithm": _algorithm(settings),
        "trainer": {"prompts_per_step": batch, **_trainer(settings, steps, epoch)},
        "evaluation": _evaluation(settings, epoch),
        "run": {"name": settings.run_name("experiment_name")},
        "seed": settings.whole("seed", least=0),
    }
    for key in settings.unused():
        settings.lose(key)
    return config, settings


def _model(settings: ArealConversion) -> dict[str, Any]:
    model: dict[str, Any] = {"path": settings.model_path("actor.path")}
    dtype = settings.get("actor.dtype")
    if dtype == "float32":
        model["dtype"] = dtype
    elif dtype != "bfloat16":
        settings.lose("actor.dtype")
    if settings.flag("actor.gradient_checkpointing"):
        model["gradient_checkpointing"] = True
    tokenizer = settings.get("tokenizer_path")
    if tokenizer not in (None, "", settings.get("actor.path")):
        settings.lose("tokenizer_path")
    return model


def _data(settings: ArealConversion) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for ours, theirs in (("train", "train_dataset.path"), ("eval", "valid_dataset.path")):
        path = settings.get(theirs)
        if isinstance(path, str) and path:
            data[ours] = {"use": "areal_tir", "options": {"path": user_path(path)}}
    if "train" not in data:
        settings.remark("data.train: the config names no data to train on")
    if not settings.flag("train_dataset.shuffle"):
        data["shuffle"] = False
    return data


def _rollout(settings: ArealConversion) -> dict[str, Any]:
    longest = settings.whole("tir.max_length", least=2)
    turn = min(settings.whole("gconfig.max_new_tokens", least=1), longest)
    rollout = settings.numbers(
        Number("temperature", ("gconfig.temperature",), least=SMALLEST),
        Number("top_p", ("gconfig.top_p",), least=SMALLEST, most=1.0, below=1.0),
        Number("top_k", ("gconfig.top_k",), least=-1, whole=True, above=0, below=_NO_LIMIT),
        count("concurrency", "rollout.max_concurrent_rollouts", default=0),
    )
    return {"max_turn_tokens": turn, "max_episode_tokens": longest, **rollout, **_staleness(settings)}


def _algorithm(settings: ArealConversion) -> dict[str, Any]:
    group, advantage = settings.whole("gconfig.n_samples", least=1), _advantage(settings)
    if group < 2 and "baseline" not in advantage:
        settings.lose("gconfig.n_samples", "one episode of a task has nothing to be compared with; the config takes 8")
        group = 8
    low = settings.number("actor.eps_clip", most=1.0)
    algorithm: dict[str, Any] = {
        "preset": "grpo",
        "group_size": group,
        **advantage,
        "loss_aggregation": "token_mean",
        "clip_low": low,
        "clip_high": settings.number("actor.eps_clip_higher", default=low),
    }
    dual = settings.number("actor.c_clip", default=0.0)
    if dual > 1:
        algorithm["clip_dual"] = dual
    level = settings.get("actor.importance_sampling_level") or "token"
    if level == "sequence":
        algorithm["ratio"] = "sequence"
    elif level != "token":
        settings.lose("actor.importance_sampling_level")
    kl = settings.number("actor.kl_ctl")
    if kl and settings.given("ref"):
        algorithm["kl_coef"] = kl
    return algorithm | _importance(settings)


def _advantage(settings: ArealConversion) -> dict[str, str]:
    """What is taken off a reward, and what the difference is divided by."""
    norm = "actor.reward_norm" if settings.given("actor.reward_norm") else "actor.adv_norm"
    mean, deviation = (_level(settings, norm, of) for of in ("mean", "std"))
    if mean not in ("group", "batch"):
        settings.lose(f"{norm}.mean_level", "a reward is set off against its group's mean")
    scale = "none" if deviation is None else "std" if deviation == "group" else "batch_std"
    if mean == "batch" and scale == "std":
        settings.lose(f"{norm}.std_level", "the config takes the deviation of the step")
        scale = "batch_std"
    return {**({"baseline": "batch_mean"} if mean == "batch" else {}), "scale": scale}


def _level(settings: ArealConversion, norm: str, of: str) -> str | None:
    """Over what AReaL takes a mean or a deviation: `group`, `batch`, or None for not at all."""
    if settings.null(f"{norm}.{of}_level") or not settings.given(norm):
        return None
    return str(settings.get(f"{norm}.{of}_level") or "batch")


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
    """How many steps lie between two savings or evaluations; 0 where AReaL's don't come by steps."""
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
    """`rollout.max_staleness`, where episodes may be sampled by weights that are older than those that are trained."""
    versions = settings.whole("rollout.max_head_offpolicyness", default=0, least=0)
    if not versions or not settings.flag("async_training", default=True):
        return {}
    return {"max_staleness": versions}


def _importance(settings: ArealConversion) -> dict[str, Any]:
    """`algorithm.importance`, where AReaL's loss is the decoupled one."""
    key = "actor.behave_imp_weight_mode"
    mode = settings.get(key) or "token_mask"
    if not settings.flag("actor.use_decoupled_loss") or mode == "disabled":
        return {}
    if mode != "token_mask":
        settings.lose(key, "the config takes token_mask")
    spellings = ("actor.behav_imp_weight_cap", "actor.behave_imp_weight_cap")
    cap = settings.number(*spellings, default=_CAP, least=1.0 + 1e-9)
    return {"importance": {"level": "token", "mode": "reject", "cap": cap}}


def _environment(settings: ArealConversion) -> dict[str, Any]:
    """`environments.default`."""
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
