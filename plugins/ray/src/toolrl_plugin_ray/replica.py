"""What a rollout worker samples with: built from the checked config, as in the trainer's process, but on its own.

The model is loaded from where the trainer loaded it, then the trainer's weights are written into its tensors; the
engine takes them from there. Components are found by the entry points of the plugins that are installed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from toolrl.assembly import sampling
from toolrl.building import build_trainer
from toolrl.config.logs import masked_logs
from toolrl.plugins.registry import load_registry
from toolrl.protocols import HoldsStill, RolloutEngine
from toolrl.rollout.runner import Runner
from toolrl.run_builder import RunBuilder
from toolrl_plugin_ray.broadcast import receive
from toolrl_plugin_ray.messages import WeightUpdate, WorkerSpec
from toolrl_plugin_ray.weights import verify


class PolicyReplica:
    """The runner of a rollout worker, with a copy of the policy that takes the trainer's weights."""

    def __init__(self, policy: Any, weights: Any, engine: RolloutEngine, runner: Runner, builder: RunBuilder) -> None:
        self.runner = runner
        self._builder = builder
        self._policy = policy
        self._weights = weights
        self._engine = engine

    async def load(self, update: WeightUpdate) -> None:
        """Sample from these weights from now on. The engine is held while they are written, as it may read the very
        tensors. Raises EngineError where they didn't arrive as they were sent."""
        engine, model = self._engine, self._policy.model
        write = await receive(update, model)
        async with engine.hold() if isinstance(engine, HoldsStill) else nullcontext():
            await asyncio.to_thread(write)
            await asyncio.to_thread(verify, update, model)
            self._weights.close()
            self._weights = self._policy.weights(update.version)
            await engine.update_weights(self._weights, update.version)

    def status(self) -> dict[str, Any]:
        """For `toolrl status`."""
        breakers, restarted = self._builder.endpoints.states(), self._builder.restarts.all()
        return {**self.runner.activity.status(), "breakers": breakers, "restarted": restarted}


@asynccontextmanager
async def replica(spec: WorkerSpec, update: WeightUpdate) -> AsyncIterator[PolicyReplica]:
    """Load the model and start everything, with these weights."""
    loaded, config = spec.loaded, spec.loaded.config
    registry = load_registry()
    backend = build_trainer(registry, config)
    backend.prepare(spec.device)
    with masked_logs(loaded.hide):
        policy: Any = backend.load_model(spec.source, dtype=spec.dtype)
        (await receive(update, policy.model))()
        verify(update, policy.model)
        builder = RunBuilder(loaded, registry, policy, Path(spec.run_dir))
        environments = builder.environments()
        weights = policy.weights(update.version)
        engine = builder.engine(weights, overlap=False)
        if config.rollout.max_staleness and not isinstance(engine, HoldsStill):
            engine = builder.engine(weights, overlap=True)  # It samples on while weights are written.
        runner = builder.runner(engine, environments)
        async with sampling(builder, environments, engine):
            yield PolicyReplica(policy, weights, engine, runner, builder)
