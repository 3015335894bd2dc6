"""Puts a run together from a config: the one place where components are built and joined.

`assemble` builds what every command needs (policy, environments, engine, runner, run folder, events), in an order in
which each thing only needs what stands before it, and takes it down again in reverse. The commands then ask for what is
theirs (`toolrl.jobs`).
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import platform
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from toolrl.chat.parser_roundtrip import calls_are_read
from toolrl.cluster.start import workers_of
from toolrl.config.frame import ComponentUse
from toolrl.config.load import LoadedConfig, build_component
from toolrl.config.logs import masked_logs
from toolrl.config.model import Config, EnvironmentConfig
from toolrl.errors import ChatFormatError, ConfigError, ToolrlError
from toolrl.loop.data import EndlessOrder, left_out
from toolrl.loop.evaluate import Evaluator
from toolrl.loop.rank0_rollout import LedRollout
from toolrl.loop.ranks import ONE, Ranks
from toolrl.loop.run_phase import Doing
from toolrl.loop.shared_rollout import SharedRunner
from toolrl.parsing.flags import EndFlags
from toolrl.plugins.events import Events
from toolrl.plugins.registry import Registry
from toolrl.preflight import build_dataset, build_datasets, check_not_inside, run_directory
from toolrl.protocols import (
    BuildContext,
    ChatFormat,
    ChecksTools,
    HoldsStill,
    Observer,
    RolloutEngine,
    TaskSource,
    WeightSource,
)
from toolrl.rollout.activity import Activity
from toolrl.rollout.environment import Environment, Limits, NamedReward
from toolrl.rollout.long_prompts import LongPrompts
from toolrl.rollout.runner import Runner
from toolrl.rollout.source import GroupSource, Oversight, TakesWeights
from toolrl.runs.folder import RunFolder, run_and_checkpoint
from toolrl.runs.recorder import RunRecorder
from toolrl.runs.status import told_status
from toolrl.tools.endpoints import ClusterLimits, Endpoints
from toolrl.tools.policy import PolicyOptions
from toolrl.tools.restarts import RestartCount, Restarts
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.tools.toolset import known_traits
from toolrl.tools.truncate import token_cut
from toolrl.types import Episode, Markers, Media, Message, Task, ToolSpec
from toolrl_plugin_torch import random_state
from toolrl_plugin_torch.adapters.lora import adapter_base
from toolrl_plugin_torch.checkpoints.checkpoint import MANIFEST, find_checkpoint, list_checkpoints, verify
from toolrl_plugin_torch.determinism import choose_kernels
from toolrl_plugin_torch.policy import Policy, PolicyWeights, load_policy, pick_device
from toolrl_plugin_torch.temporary_models import delete_left_behind

_log = logging.getLogger(__name__)

PROBE = ToolSpec("lookup", "Looks something up.", {"type": "object", "properties": {"key": {"type": "string"}}})
"""Stands for the tools of an environment where only the form of a conversation is asked about."""


@dataclass
class Assembly:
    """A run whose parts are built and started."""

    loaded: LoadedConfig
    registry: Registry
    policy: Policy
    environments: dict[str, Environment]
    """Empty where workers sample: each has its own."""
    engine: TakesWeights
    runner: GroupSource
    limits: Limits
    folder: RunFolder
    events: Events
    build: Callable[..., Any]
    """Makes a component: of a kind, from its use, for a place in the config."""
    resume: bool = False
    """Whether to go on from the run's last checkpoint."""
    datasets: Mapping[str, TaskSource] = field(default_factory=dict)
    """Those that were built before the model was loaded, by their places in the config."""
    watch: Callable[[], Mapping[str, float]] = dict
    """Metrics of the workers, since it was last asked."""
    doing: Doing = field(default_factory=Doing)
    """What the run is busy with, for `toolrl status`."""
    ranks: Ranks = ONE
    """The processes that train together."""

    @property
    def config(self) -> Config:
        return self.loaded.config

    def dataset(self, which: str) -> TaskSource:
        """`train` or `eval` of the config's data. Raises ConfigError where it names none."""
        use: ComponentUse | None = getattr(self.config.data, which)
        return self.tasks(f"data.{which}", use)

    def tasks(self, where: str, use: ComponentUse | None) -> TaskSource:
        """The data set that stands at a place in the config. Raises ConfigError where none does."""
        if where in self.datasets:
            return self.datasets[where]
        return build_dataset(self.registry, self.config, self.folder.directory, where, use)

    def built(self, kind: str, where: str, use: ComponentUse | None) -> Any:
        """A component that only one command needs, or None where the config names none."""
        return None if use is None else self.build(kind, use, where)

    def order(self) -> EndlessOrder[Task]:
        """The training tasks in the run's order."""
        rows, data = self.dataset("train"), self.config.data
        return EndlessOrder(rows, seed=self.config.seed, shuffle=data.shuffle, where="data.train")

    def evaluator(self) -> Evaluator | None:
        """Evaluates on data.eval; None where the config names none."""
        if self.config.data.eval is None:
            return None
        return Evaluator(self.runner, self.dataset("eval"), self.limits, self.config.evaluation)


@asynccontextmanager
async def assemble(
    loaded: LoadedConfig,
    registry: Registry,
    *,
    total_steps: int,
    data: Mapping[str, bool] | None = None,
    resume: bool | None = False,
    overwrite: bool = False,
    observers: Sequence[ComponentUse] | None = None,
    workers: bool = False,
    ranks: Ranks = ONE,
) -> AsyncIterator[Assembly]:
    """Build and start a run of `total_steps` training steps, 0 for a command that makes none. With `resume` it goes on
    from its last checkpoint (None for a command that can't), with `overwrite` a run of its name is deleted once all is
    started; `observers` stand for the config's. With `workers` the config's rollout workers sample, if it asks for any.
    Of several `ranks` the first one writes the run folder and tells observers.

    `data` names the data sets that the command will ask for, such as `data.train`, and whether each has to be there.
    They are built first: a file that is missing should be told before a model is loaded.

    At the end everything is stopped in reverse order; last, observers are told what ended the run, whatever it was.
    """
    config = loaded.config
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    random_state.seed(config.seed)
    device = pick_device(ranks.device_name or config.device)
    choose_kernels(device, deterministic=config.deterministic)
    directory = run_directory(config)
    if overwrite:
        check_not_inside(config.model.path, config)
    source = model_source(config.model.path)
    base = adapter_base(source)
    if overwrite and base is not None:
        check_not_inside(base, config)
    datasets = build_datasets(registry, config, directory.absolute(), data or {})
    async with AsyncExitStack() as stack:
        stack.enter_context(masked_logs(loaded.hide))
        folder = RunFolder(directory.absolute(), loaded.resolved, total_steps)
        if ranks.first:
            folder = RunFolder.create(
                directory,
                loaded.resolved,
                total_steps=total_steps,
                plugins={plugin.name: plugin.version for plugin in registry.plugins},
                resume=resume,
                overwrite=overwrite,
            )
            delete_left_behind(folder.directory)
        stack.callback(folder.close)
        policy = load_policy(config.model, source, device)
        builder = Builder(loaded, registry, policy, folder.directory, ranks)
        spread = workers and config.cluster.rollout_workers > 0
        weights = PolicyWeights(policy, 0, folder.directory)
        environments = {} if spread else builder.environments()
        # No other command samples while it trains.
        trains = total_steps > 0 and "data.train" in (data or {})
        overlap = trains and config.rollout.max_staleness > 0
        # Of several ranks the first one leads those who sample.
        leads = spread and ranks.first
        own = None if spread else builder.engine(weights, overlap=overlap)
        events = builder.events(folder, config.observers if observers is None else observers)
        events.also = left_out(datasets.values())
        limits = builder.limits()
        if ranks.first:
            of_model = config.rollout.max_episode_tokens is None
            events.add("long prompts", LongPrompts(limits.max_episode_tokens, of_model=of_model))
        stack.push_async_exit(_end_of_run(events, loaded.hide))
        runner: GroupSource
        engine: TakesWeights
        watch: Callable[[], Mapping[str, float]] = dict
        status: Callable[[], dict[str, Any]] = dict
        if leads:
            oversight = Oversight(config.rollout.max_error_rate, events.episode_end)
            starting = workers_of(loaded, policy, source, folder.directory, oversight, weights)
            engine = runner = pool = await stack.enter_async_context(starting)
            watch, status = pool.metrics, pool.status
            if ranks.several:
                engine = runner = LedRollout(ranks, pool)
        elif own is None:
            engine = runner = LedRollout(ranks, None)
        else:
            engine = own
            runner = builder.runner(own, environments, events.episode_end)
            count = RestartCount()
            status = partial(_status_here, runner.activity, builder.endpoints, builder.restarts, count)
            watch = partial(_restarts_here, builder.restarts, count)
            await stack.enter_async_context(sampling(builder, environments, own))
        if folder.replaces:
            folder.begin()
        doing = Doing()
        if ranks.first:
            await stack.enter_async_context(
                told_status(folder.directory, lambda: {"doing": doing.what, "doing_seconds": doing.seconds, **status()})
            )
        parts = (loaded, registry, policy, environments, engine, runner, limits, folder, events)
        yield Assembly(*parts, builder.build, bool(resume), datasets, watch, doing, ranks)


def _status_here(activity: Activity, endpoints: Endpoints, restarts: Restarts, count: RestartCount) -> dict[str, Any]:
    """What this process does, in the form in which a pool tells of its workers."""
    facts = {"worker": "here", "state": "ready", "pid": os.getpid(), "node": platform.node()}
    count.hear(restarts.told())
    here = {**facts, **activity.status(), "breakers": endpoints.states()}
    return {"restarted": count.totals(), "workers": [here]}


def _restarts_here(restarts: Restarts, count: RestartCount) -> dict[str, float]:
    """Metrics of what was started anew."""
    count.hear(restarts.told())
    return count.metrics()


@asynccontextmanager
async def sampling(
    builder: Builder, environments: Mapping[str, Environment], engine: RolloutEngine
) -> AsyncIterator[None]:
    """Start tools, rewards and engine; stop them in the end."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(builder.endpoints.close)
        for environment in environments.values():
            stack.push_async_callback(environment.stop)
            await environment.start()
        stack.push_async_callback(engine.stop)
        await engine.start()
        yield


def _end_of_run(events: Events, hide: Callable[[str], str]) -> Any:
    async def end(kind: Any, error: BaseException | None, trace: Any) -> bool:
        _hide_in(error, hide)
        # A cancellation reached us through Ctrl-C or SIGTERM; observers know it by that name.
        events.run_end(KeyboardInterrupt() if isinstance(error, asyncio.CancelledError) else error)
        return False

    return end


def _hide_in(error: BaseException | None, hide: Callable[[str], str]) -> None:
    """Take secrets out of an error's message: observers print it."""
    if error is None:
        return
    error.args = tuple(hide(part) if isinstance(part, str) else part for part in error.args)
    if isinstance(error, ToolrlError):
        error.message = hide(error.message)
        error.where, error.hint = (text and hide(text) for text in (error.where, error.hint))
    if isinstance(error, ConfigError):
        error.problems = [hide(problem) for problem in error.problems]


def model_source(path: str, where: str | None = "model.path") -> str:
    """Where to load the model from: a run folder stands for its last checkpoint, `RUN:best` and `RUN:30` for another.
    `where` is the path's place in the config. Raises ConfigError, CheckpointError."""
    found = run_and_checkpoint(path)
    if found is None:
        if (Path(path) / MANIFEST).is_file():  # a checkpoint's own folder
            verify(Path(path))
        return path
    run, name = found
    if not list_checkpoints(run / "checkpoints"):
        hint = "`toolrl train` and `sft` write one at the end, and in between as `save_every` says."
        raise ConfigError(f"the run {str(run)!r} has no checkpoint", where=where, hint=hint)
    return str(find_checkpoint(run / "checkpoints", name))


def _check_chat(chat: ChatFormat, has_tools: bool, where: str) -> None:
    """Find out now, not in the first episode, that a chat format can't go on after a turn; pass on its remarks."""
    if isinstance(chat, ChecksTools):
        for remark in chat.check((PROBE,) if has_tools else ()):
            _log.warning("%s: %s", where, remark)


def _check_images(chat: ChatFormat, entries: Sequence[ToolEntry], where: str) -> None:
    """Find out now that a chat format can't show the images that a tool says it gives. Raises ChatFormatError."""
    known = {name: traits for entry in entries for name, traits in known_traits(entry.toolset).items()}
    giving = next((name for name, traits in known.items() if traits.media), None)
    if giving is None or not isinstance(chat, ChecksTools):
        return
    picture: Any = b""  # Without pillow the format says what to install.
    if importlib.util.find_spec("PIL") is not None:
        from PIL import Image

        picture = Image.new("RGB", (224, 224))
    result = Message("tool", "Here.", media=(Media("image", picture),), tool_call_id="call_1", name=PROBE.name)
    try:
        chat.bridge((), [result], (PROBE,))
    except ChatFormatError as error:
        text = f"the tool {giving!r} gives images in its results: {error.message}"
        raise ChatFormatError(text, where=where, hint=error.hint) from error


def _cluster_limits(restarts: Restarts) -> ClusterLimits:
    """The line to the limits of a Ray cluster; ray is imported where a tool asks for them and nowhere else."""
    try:
        from toolrl.cluster.limiter import RayLimits
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "ray":
            raise
        raise ConfigError(
            "policy.limit_scope: `cluster` needs ray, which isn't installed",
            hint="pip install 'toolrl[cluster]', or use `limit_scope: local`.",
        ) from error
    return RayLimits(restarted=restarts.limits)


class Builder:
    """Builds the parts of one run in order, in the trainer's process or in a worker's."""

    def __init__(
        self, loaded: LoadedConfig, registry: Registry, policy: Policy, run_dir: Path, ranks: Ranks = ONE
    ) -> None:
        self._ranks = ranks
        self._config = loaded.config
        self._hide = loaded.hide
        self._registry = registry
        self._policy = policy
        self.restarts = Restarts()
        """Of what the tools lean on."""
        self.endpoints = Endpoints(partial(_cluster_limits, self.restarts))
        """What the tools of all environments share: breakers and limits."""
        self._context = BuildContext(
            name="",
            seed=self._config.seed,
            device=str(policy.device),
            run_dir=run_dir,
            tokenizer=policy.tokenizer,
            processor=policy.processor,
            restarted=self.restarts.server,
        )

    def environments(self) -> dict[str, Environment]:
        return {name: self._environment(name, config) for name, config in self._config.environments.items()}

    def _environment(self, name: str, config: EnvironmentConfig) -> Environment:
        where = f"environments.{name}"
        chat = self.build("chat_formats", config.chat_format, f"{where}.chat_format")
        entries = [
            ToolEntry(
                name=use.use,
                toolset=self.build("tools", use, f"{where}.tools[{index}]", chat_format=chat),
                rename=use.rename,
                policy=PolicyOptions(**use.policy),
                weight=use.weight,
                markers={tool: Markers(tuple(it.start), tuple(it.end)) for tool, it in use.markers.items()},
            )
            for index, use in enumerate(config.tools)
        ]
        parser = self.build("parsers", config.parser, f"{where}.parser")
        _check_chat(chat, bool(entries), f"{where}.chat_format")
        _check_images(chat, entries, f"{where}.chat_format")
        remark = calls_are_read(chat, parser, PROBE) if entries else None
        if remark is not None:
            _log.warning("%s.parser (%s): %s", where, config.parser.use, remark)
        rewards = [
            NamedReward(use.use, self.build("rewards", use, f"{where}.rewards[{index}]"), use.weight, use.timeout)
            for index, use in enumerate(config.rewards)
        ]
        return Environment(
            name=name,
            parser=parser,
            chat=chat,
            tools=ToolBox(entries, cut=token_cut(chat), hide=self._hide, endpoints=self.endpoints),
            rewards=rewards,
            system_prompt=config.system_prompt,
            end_flags=EndFlags(config.end_flags, stop=config.stop_at_answer, where=f"{where}.end_flags"),
            max_turns=config.max_turns,
            call_cost=config.call_cost,
        )

    def engine(self, weights: WeightSource, *, overlap: bool) -> RolloutEngine:
        """`overlap`: it is to sample while these weights are trained."""
        engine: RolloutEngine = self.build(
            "engines",
            self._config.engine,
            "engine",
            weights=weights,
            dtype=self._policy.dtype,
            overlap=overlap,
        )
        if self._config.deterministic and not isinstance(engine, HoldsStill):
            raise ConfigError(
                f"deterministic: the engine {self._config.engine.use!r} can't be held still between its steps",
                hint="Use the engine `transformers`, or leave `deterministic` out.",
            )
        return engine

    def runner(
        self,
        engine: RolloutEngine,
        environments: Mapping[str, Environment],
        on_episode: Callable[[Episode], None] | None = None,
    ) -> Runner:
        kind = partial(SharedRunner, self._ranks) if self._ranks.several else Runner
        return kind(
            engine,
            environments,
            concurrency=self._config.rollout.concurrency,
            seed=self._config.seed,
            max_error_rate=self._config.rollout.max_error_rate,
            on_episode=on_episode,
            hide=self._hide,
            lockstep=self._config.deterministic,
        )

    def events(self, folder: RunFolder, uses: Sequence[ComponentUse]) -> Events:
        if not self._ranks.first:
            return Events(folder, {})
        recorder = RunRecorder(
            folder,
            save_episodes=self._config.run.save_episodes,
            token_pieces=self._token_pieces,
            hide=self._hide,
        )
        observers: dict[str, Observer] = {"run folder": recorder}
        for index, use in enumerate(uses):
            observers[f"{use.use}[{index}]"] = self.build("observers", use, f"observers[{index}]")
        observers |= self._observers_of_every_run({use.use for use in uses})
        return Events(folder, observers, self._hide)

    def _observers_of_every_run(self, named: set[str]) -> dict[str, Observer]:
        """Those that plugins add to each run. One that can't be built is logged: no config asked for it."""
        observers: dict[str, Observer] = {}
        for found in self._registry.components("observers"):
            if found.component.every_run and named.isdisjoint(found.names):
                try:
                    observers[found.qualified] = self.build("observers", ComponentUse(use=found.qualified), "")
                except ToolrlError as error:
                    _log.warning("the run goes on without the observer %s: %s", found.qualified, error)
        return observers

    def limits(self) -> Limits:
        rollout = self._config.rollout
        longest = self._policy.max_positions
        wanted = rollout.max_episode_tokens
        if wanted is not None and wanted > longest:
            raise ConfigError(
                f"rollout.max_episode_tokens: {wanted} tokens, but the model can attend to {longest} only",
                hint=f"Set it to {longest} or less, or leave it out.",
            )
        return Limits(
            max_turn_tokens=rollout.max_turn_tokens,
            max_episode_tokens=wanted or longest,
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
        )

    def _token_pieces(self, ids: Sequence[int]) -> Sequence[str]:
        tokenizer = self._policy.tokenizer
        return [tokenizer.decode([token], skip_special_tokens=False) for token in ids]

    def build(self, kind: str, use: ComponentUse, where: str, **more: Any) -> Any:
        """A component; `more` are fields of its context beside those that all have."""
        context = replace(self._context, name=use.use, where=where, **more)
        return build_component(self._registry, kind, use, context, where)
