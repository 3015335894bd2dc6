"""The whole extension surface of toolrl: every hook that a plugin can implement, in one file.

A plugin is a module named by an entry point of the group `toolrl.plugins`. It marks its functions with `hookimpl` and
gives `Component` descriptors:

    from toolrl import Component, hookimpl

    @hookimpl
    def toolrl_tools():
        yield Component("calculator", "toolrl_plugin_calculator.tool:Calculator", summary="Exact arithmetic.")

Registration hooks are called once, when the registry is first read. They are pure: no I/O, no heavy import; a hook that
raises marks its plugin as broken and no other. All hooks are plain functions: an `async def` is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from pathlib import Path

    from toolrl.component import Component
    from toolrl.protocols import (
        AdvantageEstimator,
        ChatFormat,
        Cluster,
        Command,
        Harness,
        Observer,
        PolicyLoss,
        Reward,
        RolloutEngine,
        RunInfo,
        StepReport,
        TaskSource,
        ToolParser,
        Toolset,
        TrainerBackend,
    )
    from toolrl.types import Episode

PROJECT = "toolrl"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


# Registration.


@hookspec
def toolrl_parsers() -> Iterable[Component[ToolParser]]:  # type: ignore[empty-body]
    """Parsers: what reads tool calls from a turn's text. Named in a config by `environments.<name>.parser`."""


@hookspec
def toolrl_tools() -> Iterable[Component[Toolset]]:  # type: ignore[empty-body]
    """Tools and environments. Named in a config by `environments.<name>.tools`. A target may be a `@tool` function, a
    `Tool` class or a `Toolset`."""


@hookspec
def toolrl_rewards() -> Iterable[Component[Reward]]:  # type: ignore[empty-body]
    """Reward functions. Named in a config by `environments.<name>.rewards`."""


@hookspec
def toolrl_engines() -> Iterable[Component[RolloutEngine]]:  # type: ignore[empty-body]
    """Rollout engines. Named in a config by `engine`."""


@hookspec
def toolrl_datasets() -> Iterable[Component[TaskSource]]:  # type: ignore[empty-body]
    """Data sets. Named in a config by `data.train`, `data.eval` and `sft.data`."""


@hookspec
def toolrl_chat_formats() -> Iterable[Component[ChatFormat]]:  # type: ignore[empty-body]
    """Chat formats: messages to tokens. Named in a config by `environments.<name>.chat_format`."""


@hookspec
def toolrl_harnesses() -> Iterable[Component[Harness]]:  # type: ignore[empty-body]
    """Harnesses: agents whose loop somebody else wrote. Named in a config by `environments.<name>.harness`, in the
    place of toolrl's turn loop."""


@hookspec
def toolrl_advantages() -> Iterable[Component[AdvantageEstimator]]:  # type: ignore[empty-body]
    """Advantage estimators. Named in a config by `algorithm.advantage`, where the built-in ones don't do."""


@hookspec
def toolrl_policy_losses() -> Iterable[Component[PolicyLoss]]:  # type: ignore[empty-body]
    """Policy losses. Named in a config by `algorithm.policy_loss`, where the built-in surrogates don't do."""


@hookspec
def toolrl_trainers() -> Iterable[Component[TrainerBackend]]:  # type: ignore[empty-body]
    """Trainers: what loads the model and turns episodes into updates of it. Named in a config by `trainer.use`."""


@hookspec
def toolrl_observers() -> Iterable[Component[Observer]]:  # type: ignore[empty-body]
    """Observers: objects with some of the event methods below. Named in a config by `observers`;
    one with `every_run` observes every run where its plugin is installed."""


@hookspec
def toolrl_clusters() -> Iterable[Component[Cluster]]:  # type: ignore[empty-body]
    """Clusters: what places the workers of a run on other devices and machines, and holds limits for all of its
    processes. Named in a config by `cluster.use`."""


@hookspec
def toolrl_commands() -> Iterable[Component[Command]]:  # type: ignore[empty-body]
    """Commands of a plugin's own, run as `toolrl <plugin> <name>`, or as `toolrl <name>` where no other plugin has one
    of that name."""


# Events. They fire in the controller process, in its main thread, for the observers that the config names and those of
# every run. An observer only reads. One that raises is logged and counted, and hides nothing from the others.


@hookspec
def toolrl_phase_start(run: RunInfo, phase: str, episodes: int) -> None:
    """When the run begins another phase, such as `updating, step 3`. `episodes` is the number that it samples, 0 where
    it samples none. The phases of a run's start come before `toolrl_run_start`."""


@hookspec
def toolrl_run_start(run: RunInfo) -> None:
    """After everything is built and started, before the first step. Also when a run is resumed."""


@hookspec
def toolrl_episode_end(run: RunInfo, episode: Episode) -> None:
    """After an episode is scored and released, in order of completion."""


@hookspec
def toolrl_step_end(run: RunInfo, report: StepReport) -> None:
    """After a training step's update, and after an evaluation, with its metrics."""


@hookspec
def toolrl_checkpoint_saved(run: RunInfo, step: int, path: Path) -> None:
    """After a checkpoint is complete on disk."""


@hookspec
def toolrl_run_end(run: RunInfo, error: BaseException | None) -> None:
    """Last, on every path: `error` is None, or what ended the run (KeyboardInterrupt for Ctrl-C and SIGTERM)."""
