"""`toolrl areal convert`: AReaL's settings as a toolrl config, section by section."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolrl_common.conversion import SMALLEST, Conversion, ConvertCommand, Number, count, count_rows, user_path
from toolrl_plugin_areal.convert.conversion import ArealConversion, read
from toolrl_plugin_areal.convert.environment import environment

_OPTIM = "actor.optimizer"
_NO_LIMIT = 100_000_000
"""AReaL's top_k for none."""
_EVAL_TEMPERATURE = 0.6
"""Fixed in AReaL's script."""
_CAP = 5.0
"""AReaL's own bound of a weight."""
_REJECTION = "actor.rejection_sampling"
_MODES: dict[str, tuple[str, str]] = {
    "token_mask": ("token", "reject"),
    "token_truncate": ("token", "truncate"),
    "sequence_mask": ("mean", "reject"),
    "sequence_truncate": ("mean", "truncate"),
}
"""By AReaL's name. Its weight of a sequence is the geometric mean."""
_IDLE: dict[str, tuple[Any, ...]] = {
    "gconfig.min_new_tokens": (0,),
    "gconfig.greedy": (False,),
    "gconfig.stop": (None, []),
    "gconfig.stop_token_ids": (None, []),
    "actor.init_from_scratch": (False,),
    "stats_logger.wandb.mode": ("disabled",),
    "stats_logger.swanlab.mode": ("disabled",),
    "recover.mode": ("disabled",),
    "actor.use_lora": (False,),
}
"""Values that ask for nothing, so that nothing is lost with them."""


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
        "environments": {"default": environment(settings)},
        "rollout": _rollout(settings),
        "algorithm": _algorithm(settings),
        "trainer": {"prompts_per_step": batch, **_trainer(settings, steps, epoch)},
        "evaluation": _evaluation(settings, epoch),
        "run": {"name": settings.run_name("experiment_name")},
        "seed": settings.whole("seed", least=0),
    }
    for key, values in _IDLE.items():
        if settings.given(key) and settings.get(key) not in values:
            settings.lose(key)
    for key in settings.unused():
        settings.lose(key)
    return config, settings


def _model(settings: ArealConversion) -> dict[str, Any]:
    model: dict[str, Any] = {"path": settings.model_path("actor.path")}
    dtype = settings.get("actor.dtype")
    if dtype == "float32":
        model["dtype"] = dtype
    elif dtype != "bfloat16":
        settings.lose("actor.dtype", f"{str(dtype)[:40]!r} isn't there; the config leaves it at bfloat16 on a GPU")
    if settings.flag("actor.gradient_checkpointing"):
        model["gradient_checkpointing"] = True
    tokenizer = settings.get("tokenizer_path")
    if tokenizer not in (None, "", settings.get("actor.path")):
        settings.lose("tokenizer_path", "the tokenizer is the one in the model's folder")
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
    settings.remark(
        f"rollout.max_turn_tokens: a turn without a call ends the episode after {turn} tokens; AReaL's generation goes "
        f"on until tir.max_length, as it does here with max_turn_tokens: {longest}"
    )
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
        settings.lose(
            "gconfig.n_samples", f"{group} episode of a task has nothing to be compared with; the config takes 8"
        )
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
    dual, cispo = settings.number("actor.c_clip", default=0.0), settings.flag("actor.use_cispo_loss")
    if cispo:
        algorithm["surrogate"] = "cispo"
    elif dual > 1:
        algorithm["clip_dual"] = dual
    level = settings.get("actor.importance_sampling_level") or "token"
    if level == "sequence":
        algorithm["ratio"] = "sequence"
    elif level != "token":
        settings.lose("actor.importance_sampling_level", f"{level!r} isn't there; the config's ratio is of each token")
    kl = settings.number("actor.kl_ctl")
    if kl and settings.given("ref"):
        algorithm["kl_coef"] = kl
        settings.remark(
            "algorithm.kl_coef: AReaL takes the KL divergence off the reward; here it is a term of the loss"
        )
    if settings.flag("actor.dynamic_sampling"):
        if group > 1:
            algorithm |= {"drop_flat_groups": True, "filter_metric": "reward"}
        else:
            settings.lose(
                "actor.dynamic_sampling", "the rewards of a group of one are always equal: none would be left"
            )
    return algorithm | _overlong(settings) | _importance(settings)


def _overlong(settings: ArealConversion) -> dict[str, Any]:
    """What is taken off the reward of long episodes, and whether those that were cut off are left out."""
    result: dict[str, Any] = {"mask_truncated": True} if settings.flag("actor.mask_no_eos_with_zero") else {}
    buffer = settings.whole("actor.overlong_tokens", default=0, least=0)
    factor = settings.number("actor.overlong_penalty_factor", default=0.0)
    if not settings.flag("actor.overlong_reward_penalty"):
        return result
    tokens = settings.whole("gconfig.max_new_tokens", least=1)
    # AReaL fines before it scales; here the reward that is fined has been scaled.
    penalty = factor * settings.number("actor.reward_scaling", least=-1e30)
    if 0 < buffer <= tokens and penalty > 0:
        return {**result, "overlong": {"tokens": tokens, "buffer": buffer, "penalty": penalty}}
    settings.lose(
        "actor.overlong_reward_penalty",
        f"overlong_tokens {buffer} of {tokens} and a penalty of {penalty:g} do nothing",
    )
    return result


def _advantage(settings: ArealConversion) -> dict[str, str]:
    """What is taken off a reward, and what the difference is divided by."""
    if settings.flag("actor.group_reward_norm"):
        return {"scale": "std"}
    norm = "actor.reward_norm" if settings.given("actor.reward_norm") else "actor.adv_norm"
    mean, deviation = (_level(settings, norm, of) for of in ("mean", "std"))
    if mean not in ("group", "batch"):
        what = "None" if mean is None else repr(mean)
        settings.lose(f"{norm}.mean_level", f"{what} isn't there: a reward is set off against its group's mean")
    scale = "none" if deviation is None else "std" if deviation == "group" else "batch_std"
    if mean == "batch" and scale == "std":
        what = "the group's deviation, 0 where its rewards are equal, goes with the group's mean only"
        settings.lose(f"{norm}.std_level", f"{what}; the config takes that of the step")
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
        settings.lose(f"{_OPTIM}.type", f"{str(kind)[:40]!r} isn't there; the optimizer is AdamW")
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
        settings.lose(f"{_OPTIM}.lr_scheduler_type", f"{str(schedule)[:40]!r} isn't there; the rate stays constant")
    return result


def _every(settings: ArealConversion, section: str, epoch: int | None) -> int:
    """How many steps lie between two savings or evaluations; 0 where AReaL's don't come by steps."""
    steps, epochs = (settings.whole(f"{section}.freq_{of}", default=0) for of in ("steps", "epochs"))
    if steps > 0:
        return steps
    if epochs > 0:
        if epoch is not None:
            return epochs * epoch
        settings.lose(
            f"{section}.freq_epochs", "how many steps an epoch has isn't known, since its data can't be read here"
        )
    if settings.get(f"{section}.freq_secs") is not None:
        settings.lose(f"{section}.freq_secs", "saving and evaluation come by steps")
    return 0


def _evaluation(settings: ArealConversion, epoch: int | None) -> dict[str, Any]:
    every = _every(settings, "evaluator", epoch)
    settings.remark(
        f"evaluation.temperature: {_EVAL_TEMPERATURE}, which stands in AReaL's script and not in its config"
    )
    return {**({"every": every} if every else {}), "temperature": _EVAL_TEMPERATURE}


def _staleness(settings: ArealConversion) -> dict[str, int]:
    """`rollout.max_staleness`, where episodes may be sampled by weights that are older than those that are trained."""
    versions = settings.whole("rollout.max_head_offpolicyness", default=0, least=0)
    if not versions or not settings.flag("async_training", default=True):
        return {}
    settings.remark(
        f"rollout.max_staleness: {versions}, as rollout.max_head_offpolicyness; sampling and training run at the same "
        "time, for which the embedded engine keeps a copy of the weights; 0 lets them take turns"
    )
    return {"max_staleness": versions}


def _importance(settings: ArealConversion) -> dict[str, Any]:
    """`algorithm.importance`, where AReaL's loss is the decoupled one."""
    if not settings.flag("actor.use_decoupled_loss"):
        return {}
    found = _rejection(settings) if settings.given(_REJECTION) else _capped(settings)
    if found is None:
        return {}
    level, mode, cap = found
    return {"importance": {"level": level, "mode": mode, "cap": cap}}


def _capped(settings: ArealConversion) -> tuple[str, str, float] | None:
    """By AReaL's older settings, in either spelling."""
    key = "actor.behave_imp_weight_mode"
    mode = str(settings.get(key) or "token_mask")
    spellings = ("actor.behav_imp_weight_cap", "actor.behave_imp_weight_cap")
    caps = [_cap(settings, name) for name in spellings if settings.given(name) or settings.null(name)]
    if mode == "disabled":
        return None
    if mode not in _MODES:
        settings.lose(key, f"{mode[:40]!r} isn't there; the config takes token_mask")
    return (*_MODES.get(mode, _MODES["token_mask"]), caps[0] if caps else _CAP)


def _rejection(settings: ArealConversion) -> tuple[str, str, float] | None:
    level, action = (str(settings.get(f"{_REJECTION}.{name}") or "") for name in ("level", "action"))
    metric, mean = (settings.get(f"{_REJECTION}.{name}") for name in ("metric", "agg"))
    if metric not in (None, "ratio"):
        settings.lose(f"{_REJECTION}.metric", f"{str(metric)[:40]!r} isn't there: weights are bounded by their ratio")
        return None
    if level == "sequence" and mean not in (None, "mean"):
        settings.lose(f"{_REJECTION}.agg", f"{str(mean)[:40]!r} isn't there: a sequence's weight is the geometric mean")
    key = f"{'sequence' if level == 'sequence' else 'token'}_{'truncate' if action == 'clamp' else 'mask'}"
    return (*_MODES[key], _cap(settings, f"{_REJECTION}.upper"))


def _cap(settings: ArealConversion, key: str) -> float:
    if settings.null(key):
        settings.lose(key, f"weights have a bound here; the config takes AReaL's own, {_CAP:g}")
        return _CAP
    return settings.number(key, default=_CAP, least=1.0 + 1e-9)
