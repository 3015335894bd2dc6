"""Builds the parts of one run, in the trainer's process or in a worker's: each component is made here, from its
place in the config."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from toolrl.building import build_component
from toolrl.chat.parser_roundtrip import calls_are_read, markers_are_read
from toolrl.config.frame import ComponentUse
from toolrl.config.load import LoadedConfig
from toolrl.config.model import EnvironmentConfig
from toolrl.errors import ConfigError, ToolrlError
from toolrl.loop.ranks import ONE, Ranks
from toolrl.parsing.flags import EndFlags
from toolrl.plugins.events import Events
from toolrl.plugins.registry import Registry
from toolrl.preflight import build_cluster
from toolrl.protocols import (
    BuildContext,
    ChecksTools,
    HoldsStill,
    RolloutEngine,
    TrainedModel,
    WeightSource,
)
from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.runner import Runner
from toolrl.rollouts.scoring import reward_names
from toolrl.runs.folder import RunFolder
from toolrl.runs.recorder import RunRecorder
from toolrl.tools.endpoints import ClusterLimits, Endpoints
from toolrl.tools.policy import PolicyOptions
from toolrl.tools.rate_limits import Limiter
from toolrl.tools.restart_counts import RestartCounts
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.tools.truncate import token_cut
from toolrl.types import Episode, Markers, ToolSpec

_log = logging.getLogger(__name__)

PROBE = ToolSpec("lookup", "Looks something up.", {"type": "object", "properties": {"key": {"type": "string"}}})
"""Stands for the tools of an environment where only the form of a conversation is asked about."""


class RunBuilder:
    """Builds the parts of one run in order, in the trainer's process or in a worker's."""

    def __init__(
        self, loaded: LoadedConfig, registry: Registry, model: TrainedModel, run_dir: Path, ranks: Ranks = ONE
    ) -> None:
        self._ranks = ranks
        self._config = loaded.config
        self._hide = loaded.hide
        self._registry = registry
        self._model = model
        self.restarts = RestartCounts()
        """Of what the tools depend on."""
        self.endpoints = Endpoints(self._cluster_limits)
        """What the tools of all environments share: breakers and limits."""
        self._context = BuildContext(
            name="",
            seed=self._config.seed,
            device=str(model.device),
            run_dir=run_dir,
            tokenizer=model.tokenizer,
            processor=model.processor,
            restarted=self.restarts.add_server,
            shared_limit=self._shared_limit,
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
        history = [
            ToolEntry(
                name=use.use,
                toolset=self.build("tools", use, f"{where}.history[{index}]", chat_format=chat),
                policy=PolicyOptions(session_timeout=use.timeout),
                rewrites=True,
            )
            for index, use in enumerate(config.history)
        ]
        parser = self.build("parsers", config.parser, f"{where}.parser")
        if history and isinstance(parser.render_results(()), str):
            raise ConfigError(
                f"the parser {config.parser.use!r} puts results inside the turn, and a history is rewritten only where "
                "a message begins the next turn",
                where=f"{where}.history",
                hint="Take a parser that answers calls by messages, such as hermes, or leave `history` out.",
            )
        # Found out now, and not in the first episode: whether the format can go on after a turn.
        for line in chat.check((PROBE,) if entries else ()) if isinstance(chat, ChecksTools) else ():
            _log.warning("%s.chat_format: %s", where, line)
        for index, entry in enumerate(entries):
            if any(not markers_are_read(parser, name, it) for name, it in entry.markers.items()):
                _log.warning(
                    "%s.tools[%d].markers: no effect, as the parser %s reads no calls by markers",
                    where, index, config.parser.use,
                )  # fmt: skip
        remark = calls_are_read(chat, parser, PROBE) if entries else None
        if remark is not None:
            _log.warning("%s.parser (%s): %s", where, config.parser.use, remark)
        names = reward_names(use.name or use.use for use in config.rewards)
        rewards = [
            NamedReward(name, self.build("rewards", use, f"{where}.rewards[{index}]"), use.weight, use.timeout)
            for index, (name, use) in enumerate(zip(names, config.rewards, strict=True))
        ]
        harness = None
        if config.harness is not None:
            more = {"chat_format": chat, "deterministic": self._config.deterministic}
            harness = self.build("harnesses", config.harness, f"{where}.harness", **more)
        return Environment(
            name=name,
            parser=parser,
            chat=chat,
            tools=ToolBox([*entries, *history], cut=token_cut(chat), hide=self._hide, endpoints=self.endpoints),
            rewards=rewards,
            system_prompt=config.system_prompt,
            end_flags=EndFlags(config.end_flags, stop=config.stop_at_answer, where=f"{where}.end_flags"),
            max_turns=config.max_turns,
            max_invalid_turns=config.max_invalid_turns,
            call_cost=config.call_cost,
            untrained_roles=config.untrained_roles,
            harness=harness,
        )

    def engine(self, weights: WeightSource | None, *, overlap: bool) -> RolloutEngine:
        """`overlap`: it is to sample while these weights are trained."""
        engine: RolloutEngine = self.build(
            "engines",
            self._config.engine,
            "engine",
            weights=weights,
            dtype=self._model.dtype,
            overlap=overlap,
            deterministic=self._config.deterministic,
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
        return self._ranks.runner(
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
        events = Events(folder, {"run folder": recorder}, self._hide)
        self._add_observers_of_every_run(events, {use.use for use in uses})
        for index, use in enumerate(uses):
            events.add(f"{use.use}[{index}]", self.build("observers", use, f"observers[{index}]"))
        return events

    def _add_observers_of_every_run(self, events: Events, named: set[str]) -> None:
        """Those that plugins add to each run. One that can't be built is logged: no config asked for it."""
        for found in self._registry.components("observers"):
            if found.component.every_run and named.isdisjoint(found.names):
                try:
                    events.add(found.qualified, self.build("observers", ComponentUse(use=found.qualified), ""))
                except ToolrlError as error:
                    _log.warning("the run continues without the observer %s: %s", found.qualified, error)

    def limits(self) -> Limits:
        rollout = self._config.rollout
        longest = self._model.max_positions
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
            min_p=rollout.min_p,
            keep_masks=rollout.keep_sampling_masks and rollout.truncates,
        )

    def _cluster_limits(self) -> ClusterLimits:
        """The limits that all processes of the cluster share; called when a tool asks for them."""
        cluster = build_cluster(self._registry, self._config, "policy.limit_scope: cluster")
        return cluster.limits(self.restarts.add_limits)

    async def _shared_limit(self, name: str, permits: int) -> Limiter:
        """See BuildContext."""
        scope: Literal["local", "cluster"] = "cluster" if self._config.cluster.rollout_workers else "local"
        policy = PolicyOptions(concurrency=permits, limit_scope=scope, limit_name=name)
        return await self.endpoints.limiter(name, policy)

    def _token_pieces(self, ids: Sequence[int]) -> Sequence[str]:
        tokenizer = self._model.tokenizer
        return [tokenizer.decode([token], skip_special_tokens=False) for token in ids]

    def build(self, kind: str, use: ComponentUse, where: str, **more: Any) -> Any:
        """A component; `more` are fields of its context beside those that all have."""
        context = replace(self._context, name=use.use, where=where, **more)
        return build_component(self._registry, kind, use, context, where)
