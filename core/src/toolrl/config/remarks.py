"""Remarks on valid settings that may surprise: `toolrl config check` prints them, a run's start logs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from toolrl.config.components import check_options, options_model, sites
from toolrl.config.model import Config
from toolrl.config.paths import format_path
from toolrl.config.sections import of_trainer
from toolrl.errors import ConfigError, PluginError, ToolrlError
from toolrl.plugins.checks import did_you_mean
from toolrl.plugins.registry import Registry

DATA = ("data.train", "data.eval", "sft.data")
"""The places of data sets in a config."""


def remarks(config: Config, registry: Registry) -> list[str]:
    """A line each, with its place in the config."""
    parts = (_evaluation, _rewards, _without_effect, _refused_by_train)
    return [
        *config.old_keys,
        *(line for part in parts for line in part(config)),
        *_sampling(config, registry),
        *of_trainer(registry, config, "remarks"),
    ]


def missing_files(config: Config, registry: Registry, data: Collection[str] = DATA) -> Iterator[str]:
    """A line for each missing file, folder or package that a config needs: the trainer's (a model, peft), clusters,
    runs, components' own. `data`: the places of the data sets that are used."""
    yield from of_trainer(registry, config, "missing", data)
    for field in ("rollout_workers", "trainer_workers"):
        if getattr(config.cluster, field):
            try:
                registry.get("clusters", config.cluster.component.use)
            except PluginError as error:
                yield f"cluster.{field}: {error.message}; {error.hint}"
    source = config.sft.from_run if config.sft is not None and "sft.data" in data else None
    if source is not None and not (Path(source) / "config.yaml").is_file():
        there = Path(source).is_dir()
        yield "sft.from_run: " + (f"{source!r} is no run's folder" if there else f"there is no folder {source!r} here")
    for site in sites(config.model_dump(by_alias=True)):
        if site.kind == "datasets" and format_path(site.path[:2]) not in data:
            continue
        if (problem := registry.unmet(site.kind, site.name)) is not None:
            yield f"{format_path(site.path)}: {problem}"
        options, _ = check_options(registry.get(site.kind, site.name).component, site.options)
        problem = _missing_of(options)
        if problem is not None:
            yield f"{format_path((*site.path, 'options'))}: {problem}"
        check_model = getattr(options, "model_problem", lambda _: None)
        if (problem := check_model(Path(config.model.path))) is not None:
            yield f"{format_path(site.path)}: {problem}"
        if "data.train" in data:
            yield from getattr(options, "misfits", lambda _: ())(config)
            yield from _masks(config, options) if site.path == ("engine",) else ()


def _masks(config: Config, engine: Any) -> Iterator[str]:
    """Why the engine with these options can't record sampling masks, where it shall."""
    if config.rollout.keep_sampling_masks and config.rollout.truncates:
        check = getattr(engine, "sampling_problem", lambda _: "it records no sampling masks; set it to false")
        if problem := check(config.rollout):
            yield f"rollout.keep_sampling_masks: engine {config.engine.use}: {problem}"


def _missing_of(options: BaseModel | None) -> str | None:
    """The problem that a component's options report of their files."""
    check = getattr(options, "check_files", None)
    try:
        if callable(check):
            check()
    except ToolrlError as error:
        return "; ".join(filter(None, (error.message, error.hint)))
    return None


def _evaluation(config: Config) -> list[str]:
    if config.evaluation.every and config.data.eval is None:
        return ["evaluation.every: nothing is evaluated, as data.eval names no data set"]
    lines = []
    if config.trainer.keep_best and not config.evaluation.every:
        lines.append("trainer.keep_best: evaluations are at the start and the end only; set evaluation.every")
    metric = config.trainer.best_by
    if metric is not None and not metric.startswith(_BY_NAME):
        uses = [reward for environment in config.environments.values() for reward in environment.rewards]
        rewards = {reward.name or reward.use for reward in uses}
        sources = (*rewards, "step:", "tool:", "call_cost")
        k = config.evaluation.episodes_per_task
        known = [*_EVALUATED, f"avg@{k}", f"pass@{k}", *(f"reward/{name}/mean" for name in sorted(rewards))]
        if metric not in known and not metric.startswith(tuple(f"reward/{source}" for source in sources)):
            lines.append(f"trainer.keep_best: evaluations give no {metric!r}. {did_you_mean(metric, known)}")
    return lines


_BY_NAME = ("tool/", "stop/", "calls/error/", "environment/", "dataset/", "cluster/")
"""Prefixes of metrics that are named after what a run finds."""
_EVALUATED = (
    "accuracy", "reward/mean", "reward/std", "turns/mean", "calls/mean", "calls/success", "truncated",
    "tokens/sampled", "tokens/prompt", "time/generate", "time/tools", "time/longest", "time/eval", "errors/rate",
)  # fmt: skip
"""Metrics of every evaluation."""


def _rewards(config: Config) -> list[str]:
    lines = []
    for name, environment in config.environments.items():
        if not environment.rewards and environment.harness is None and config.algorithm.distillation is None:
            given = "only what its tools give counts" if environment.tools else "nothing is learned from its episodes"
            lines.append(f"environments.{name}: it has no reward function, so {given}; add `rewards:`")
    return lines


def _without_effect(config: Config) -> list[str]:
    lines = []
    for name, environment in config.environments.items():
        where = f"environments.{name}"
        if environment.stop_at_answer and "answer" not in environment.end_flags:
            lines.append(f"{where}.stop_at_answer: no effect, as end_flags doesn't name `answer`")
        lines += [
            f"{where}.{field}: {entry!r} is there twice; the second has no effect"
            for field in ("end_flags", "untrained_roles")
            for entry, count in Counter(getattr(environment, field)).items()
            if count > 1
        ]
    if config.cluster.worker_resources and not config.cluster.rollout_workers:
        lines.append("cluster.worker_resources: no effect, as cluster.rollout_workers is 0")
    return lines


def _sampling(config: Config, registry: Registry) -> list[str]:
    rollout = config.rollout
    if rollout.keep_sampling_masks and not rollout.truncates:
        return ["rollout.keep_sampling_masks: no effect, as top_p, top_k and min_p leave no token out"]
    if rollout.keep_sampling_masks or not rollout.truncates:
        return []
    try:
        options = options_model(registry.get("engines", config.engine.use).component)
    except ToolrlError:
        options = None
    way = "set rollout.keep_sampling_masks, or leave them out for training"
    if not hasattr(options, "sampling_problem"):
        way = f"leave them out for training (engine {config.engine.use} records no sampling masks)"
    return [
        f"rollout.top_p {rollout.top_p:g}, top_k {rollout.top_k} and min_p {rollout.min_p:g}: the policy that samples "
        f"isn't the one that is trained, whose log-probabilities are those before any truncation; {way}"
    ]


# What sharded weights don't support, or the way in which the ranks were started.


def _refused_by_train(config: Config) -> list[str]:
    """A line for each setting that `toolrl train` alone rejects."""
    cluster = config.cluster
    try:
        check_ranks(config, cluster.trainer_workers > 1 or cluster.shard is True)
    except ConfigError as error:
        return [f"{error.message}. {error.hint} `toolrl train` refuses it"]
    return []


def check_ranks(config: Config, distributed: bool) -> None:
    """Reject, before a model is loaded, settings that sharded weights don't support. Raises ConfigError."""
    if not distributed:
        return
    if config.rollout.max_staleness and not config.cluster.split:
        raise ConfigError(
            "rollout.max_staleness: where weights are spread over ranks, rollout and training take turns",
            hint="Set it to 0, have others sample by cluster.rollout_workers, or train in one process.",
        )
    config.trainer.check_sharded()
