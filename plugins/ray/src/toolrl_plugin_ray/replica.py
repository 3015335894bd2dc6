"""What a rollout worker samples with: built from the checked config, as in the trainer's process, but on its own.

Where the engine reads a torch module, the model is loaded from where the trainer loaded it, and the trainer's weights
are written into its tensors. An engine that holds the weights itself, such as vLLM, receives them from the trainer, and
nothing else here has them. Components are found by the entry points of the plugins that are installed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from toolrl.assembly import sampling
from toolrl.building import build_trainer, engine_options
from toolrl.config.logs import masked_logs
from toolrl.plugins.registry import load_registry
from toolrl.protocols import HoldsStill, RolloutEngine
from toolrl.rollouts.runner import Runner
from toolrl.run_builder import RunBuilder
from toolrl_plugin_ray.messages import WeightUpdate, WorkerSpec
from toolrl_plugin_ray.weights import BroadcastWeights, receivers, verify, write
from toolrl_plugin_torch.sharding.transfer import receive


class PolicyReplica:
    """The runner of a rollout worker, whose engine takes the trainer's weights: by `policy.model`, a copy of the
    trainer's, or where that is hollow by itself."""

    def __init__(
        self, policy: Any, weights: Any, engine: RolloutEngine, runner: Runner, builder: RunBuilder, *, hollow: bool
    ) -> None:
        self.runner = runner
        self._builder = builder
        self._policy = policy
        self._weights = weights
        self._engine = engine
        self._hollow = hollow
        self._held = AsyncExitStack()

    async def load(self, update: WeightUpdate) -> None:
        """Sample from these weights from now on. The engine is held while they are written, as it may read the very
        tensors; where that fails, until it succeeds. Raises TransferBrokenError, and EngineError where they didn't
        arrive as they were sent."""
        engine, policy = self._engine, self._policy
        sent = None if self._hollow else await asyncio.to_thread(dict, receive(update.place))
        if isinstance(engine, HoldsStill):
            await self._held.enter_async_context(engine.hold())
        if sent is not None:
            await asyncio.to_thread(write, sent, policy.model)
            await asyncio.to_thread(verify, update, policy.model)
        self._weights.close()
        self._weights = BroadcastWeights(policy, update) if sent is None else policy.weights(update.version)
        await engine.update_weights(self._weights, update.version)
        await self._held.aclose()

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
    hollow = receivers(engine_options(registry, config)) > 0
    with masked_logs(loaded.hide):
        policy: Any = backend.load_model(spec.source, dtype=spec.dtype, hollow=hollow)
        if not hollow:
            write(dict(receive(update.place)), policy.model)
            verify(update, policy.model)
        builder = RunBuilder(loaded, registry, policy, Path(spec.run_dir))
        environments = builder.environments()
        weights = BroadcastWeights(policy, update) if hollow else policy.weights(update.version)
        engine = builder.engine(weights, overlap=False)
        if config.rollout.max_staleness and not isinstance(engine, HoldsStill):
            engine = builder.engine(weights, overlap=True)  # It samples on while weights are written.
        runner = builder.runner(engine, environments)
        async with sampling(builder, environments, engine):
            yield PolicyReplica(policy, weights, engine, runner, builder, hollow=hollow)
