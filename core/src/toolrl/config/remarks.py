"""What is no mistake in a config and yet may surprise: `toolrl config check` prints it, a run's start logs it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from toolrl.config.components import check_options, sites
from toolrl.config.model import Config
from toolrl.config.paths import format_path
from toolrl.errors import ToolrlError
from toolrl.plugins.registry import Registry


def remarks(config: Config) -> list[str]:
    """A line each, with its place in the config."""
    parts = (_evaluation, _rewards, _sampling, _objective, _staleness, _offload, _workers)
    return [line for part in parts for line in part(config)]


def missing_model(config: Config) -> str | None:
    """What to say of a model that isn't there; None where it is, or where it may be a hub's name."""
    path = config.model.path
    run = path.rpartition(":")[0]  # RUN:best
    if Path(path).is_dir() or (run and Path(run).is_dir()) or _may_be_on_hub(path):
        return None
    return f"model.path: there is no folder {path!r} here; paths are relative to the current directory"


def missing_files(config: Config, registry: Registry) -> Iterator[str]:
    """What to say of files, folders and packages that a config needs and that aren't there: model, run, peft,
    components' own."""
    model = missing_model(config)
    if model is not None:
        yield model
    if config.model.lora is not None and importlib.util.find_spec("peft") is None:
        yield "model.lora: needs peft, which isn't installed: pip install 'toolrl[lora]'"
    if config.sft is not None and config.sft.from_run is not None and not Path(config.sft.from_run).is_dir():
        yield f"sft.from_run: there is no folder {config.sft.from_run!r} here"
    for site in sites(config.model_dump(by_alias=True)):
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
        return error.message
    except Exception as error:  # noqa: BLE001 - a plugin's mistake must not keep the others from being told
        return f"its files can't be checked: {type(error).__name__}: {error}"
    return None


def _may_be_on_hub(path: str) -> bool:
    return path.count("/") <= 1 and not path.startswith((".", "/", "~"))


def _evaluation(config: Config) -> list[str]:
    if config.evaluation.every and config.data.eval is None:
        return ["evaluation.every: nothing is evaluated, as data.eval names no data set"]
    if config.trainer.keep_best and not config.evaluation.every:
        return ["trainer.keep_best: evaluations are at the start and the end only; set evaluation.every"]
    return []


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
    if algorithm.kl_coef and algorithm.kl_estimator == "k2" and algorithm.kl_correction:
        lines.append(
            "algorithm.kl_correction: weighed by the ratio, the gradient of k2 isn't that of the divergence; set it to "
            "false with k2"
        )
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


def _sampling(config: Config) -> list[str]:
    rollout = config.rollout
    if rollout.top_p == 1 and not rollout.top_k:
        return []
    return [
        f"rollout.top_p {rollout.top_p:g} and rollout.top_k {rollout.top_k}: the policy that samples isn't the one "
        "that is trained, whose log-probabilities are those before any truncation; leave both out for training"
    ]
