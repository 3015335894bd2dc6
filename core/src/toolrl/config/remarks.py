"""What is no mistake in a config and yet may surprise: `toolrl config check` prints it, a run's start logs it."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from toolrl.config.components import check_options, sites
from toolrl.config.model import Config
from toolrl.config.model_path import missing_model
from toolrl.config.paths import format_path
from toolrl.config.spread import check_devices, check_ranks
from toolrl.errors import ConfigError, ToolrlError
from toolrl.plugins.checks import nearest
from toolrl.plugins.registry import Registry

DATA = ("data.train", "data.eval", "sft.data")
"""The places of data sets in a config."""


def remarks(config: Config) -> list[str]:
    """A line each, with its place in the config."""
    parts = (
        _evaluation, _rewards, _sampling, _objective, _staleness, _updates, _offload, _workers, _ranks,
    )  # fmt: skip
    return [line for part in parts for line in part(config)]


def missing_files(config: Config, registry: Registry, data: Collection[str] = DATA) -> Iterator[str]:
    """What to say of files, folders and packages that a config needs and that aren't there: model, run, peft,
    ray, components' own. `data`: the places of the data sets that are used."""
    model = missing_model(config.model.path)
    if model is not None:
        yield model
    if config.model.lora is not None and importlib.util.find_spec("peft") is None:
        yield "model.lora: needs peft, which isn't installed: pip install 'toolrl[lora]'"
    for field in ("rollout_workers", "trainer_workers"):
        if getattr(config.cluster, field) and importlib.util.find_spec("ray") is None:
            yield f"cluster.{field}: needs ray, which isn't installed: pip install 'toolrl[cluster]'"
    source = config.sft.from_run if config.sft is not None and "sft.data" in data else None
    if source is not None and not (Path(source) / "config.yaml").is_file():
        there = Path(source).is_dir()
        yield "sft.from_run: " + (f"{source!r} is no run's folder" if there else f"there is no folder {source!r} here")
    for site in sites(config.model_dump(by_alias=True)):
        if site.kind == "datasets" and format_path(site.path) not in data:
            continue
        options, _ = check_options(registry.get(site.kind, site.name).component, site.options)
        problem = _missing_of(options)
        if problem is not None:
            yield f"{format_path((*site.path, 'options'))}: {problem}"


def _missing_of(options: BaseModel | None) -> str | None:
    """What a component's options say of their files."""
    check = getattr(options, "check_files", None)
    try:
        if callable(check):
            check()
    except ToolrlError as error:
        return "; ".join(filter(None, (error.message, error.hint)))
    except Exception as error:  # noqa: BLE001 - a plugin's mistake must not keep the others from being told
        return f"its files can't be checked: {type(error).__name__}: {error}"
    return None


def _evaluation(config: Config) -> list[str]:
    if config.evaluation.every and config.data.eval is None:
        return ["evaluation.every: nothing is evaluated, as data.eval names no data set"]
    lines = []
    if config.trainer.keep_best and not config.evaluation.every:
        lines.append("trainer.keep_best: evaluations are at the start and the end only; set evaluation.every")
    metric = config.trainer.best_by
    if metric is not None and not metric.startswith(("tool/", "stop/", "calls/error/", "environment/", "cluster/")):
        rewards = {reward.use for environment in config.environments.values() for reward in environment.rewards}
        sources = (*rewards, "step:", "tool:", "call_cost")
        k = config.evaluation.episodes_per_task
        known = [*_EVALUATED, f"avg@{k}", f"pass@{k}", *(f"reward/{name}/mean" for name in sorted(rewards))]
        if metric not in known and not metric.startswith(tuple(f"reward/{source}" for source in sources)):
            near = nearest(metric, known)
            hint = f"did you mean {near!r}?" if near else f"there are: {', '.join(known)}"
            lines.append(f"trainer.keep_best: evaluations give no {metric!r}; {hint}")
    return lines


_EVALUATED = (
    "accuracy", "reward/mean", "reward/std", "turns/mean", "calls/mean", "calls/success", "truncated",
    "tokens/sampled", "tokens/prompt", "time/generate", "time/tools", "time/longest", "time/eval", "errors/rate",
)  # fmt: skip
"""Metrics of every evaluation."""


def _offload(config: Config) -> list[str]:
    missing = {
        "reference": "there is none, as algorithm.kl_coef is 0" if not config.algorithm.kl_coef else None,
        "critic": "there is none in this algorithm" if config.algorithm.baseline != "critic" else None,
    }
    return [f"trainer.offload: {part}: {why}" for part in config.trainer.offload if (why := missing.get(part))]


def _rewards(config: Config) -> list[str]:
    lines = []
    for name, environment in config.environments.items():
        if not environment.rewards:
            given = "only what its tools give counts" if environment.tools else "nothing is learned from its episodes"
            lines.append(f"environments.{name}: it has no reward function, so {given}; add `rewards:`")
    return lines


def _objective(config: Config) -> list[str]:
    algorithm, lines = config.algorithm, []
    if algorithm.advantage is None and algorithm.baseline in ("batch_mean", "critic"):
        lines += [
            f"algorithm.{name}: with the baseline {algorithm.baseline} groups of equal rewards teach something "
            "too, and are left out"
            for name in ("drop_flat_groups", "dynamic_sampling")
            if getattr(algorithm, name)
        ]
    return lines


def _staleness(config: Config) -> list[str]:
    algorithm = config.algorithm
    if not config.rollout.max_staleness or algorithm.importance is not None or algorithm.proximal == "sampled":
        return []
    return [
        f"rollout.max_staleness {config.rollout.max_staleness}: stale samples are trained on as if the policy had just "
        "drawn them; set `algorithm.importance: {}` to weigh them"
    ]


def _workers(config: Config) -> list[str]:
    cluster = config.cluster
    if not cluster.rollout_workers or cluster.worker_gpus or not config.device.startswith("cuda"):
        return []
    return [f"cluster.worker_gpus 0: the workers' engines compute on the CPU, and device is {config.device}"]


def _updates(config: Config) -> list[str]:
    trainer, size = config.trainer, config.algorithm.group_size
    episodes = trainer.prompts_per_step * size
    if trainer.updates_per_step <= episodes:
        return []
    return [
        f"trainer.updates_per_step {trainer.updates_per_step}: a step has {episodes} episodes "
        f"({trainer.prompts_per_step} prompts_per_step × group_size {size}), so there are no more updates than that"
    ]


def _ranks(config: Config) -> list[str]:
    """What `toolrl train` refuses, and the other commands don't."""
    cluster = config.cluster
    checks = [partial(check_ranks, config, cluster.trainer_workers > 1 or cluster.shard is True)]
    if cluster.trainer_workers:
        checks.append(partial(check_devices, config))
    lines = []
    for check in checks:
        try:
            check()
        except ConfigError as error:
            lines.append(f"{error.message}. {error.hint} `toolrl train` refuses it")
    return lines


def _sampling(config: Config) -> list[str]:
    rollout = config.rollout
    if rollout.top_p == 1 and not rollout.top_k:
        return []
    return [
        f"rollout.top_p {rollout.top_p:g} and rollout.top_k {rollout.top_k}: the policy that samples isn't the one "
        "that is trained, whose log-probabilities are those before any truncation; leave both out for training"
    ]
