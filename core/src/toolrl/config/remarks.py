"""What is no mistake in a config and yet may surprise: `toolrl config check` prints it, a run's start logs it."""

from __future__ import annotations

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
    return [*_evaluation(config), *_rewards(config), *_sampling(config), *_staleness(config), *_workers(config)]


def missing_model(config: Config) -> str | None:
    """What to say of a model that isn't there; None where it is, or where it may be a hub's name."""
    path = config.model.path
    if Path(path).is_dir() or _may_be_on_hub(path):
        return None
    return f"model.path: there is no folder {path!r} here; paths are relative to the current directory"


def missing_files(config: Config, registry: Registry) -> Iterator[str]:
    """What to say of files and folders that a config names and that aren't there: model, run, components' own."""
    model = missing_model(config)
    if model is not None:
        yield model
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
    return []


def _rewards(config: Config) -> list[str]:
    lines = []
    for name, environment in config.environments.items():
        if not environment.rewards:
            given = "only what its tools give counts" if environment.tools else "nothing is learned from its episodes"
            lines.append(f"environments.{name}: it has no reward function, so {given}; add `rewards:`")
    return lines


def _staleness(config: Config) -> list[str]:
    if not config.rollout.max_staleness or config.algorithm.importance is not None:
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
