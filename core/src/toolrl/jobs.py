"""What the commands do with an assembled run: train, evaluate, sample."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from toolrl.assembly import Assembly
from toolrl.config.remarks import remarks
from toolrl.loop.ablation import ablate
from toolrl.loop.metrics import episode_metrics
from toolrl.protocols import StepReport

_log = logging.getLogger(__name__)


async def train(assembly: Assembly) -> None:
    """The trainer's reinforcement learning from the run's last checkpoint, or from the start, to trainer.steps."""
    with assembly.ranks.explaining():
        for remark in remarks(assembly.config, assembly.registry):
            _log.warning("%s", remark)
        await assembly.backend.train(assembly)


async def evaluate(assembly: Assembly, conditions: Sequence[str] = ()) -> dict[str, Any]:
    """One evaluation on data.eval, and one under each condition of an ablation: their metrics."""
    evaluator, uses = assembly.evaluator(), assembly.config.environments
    assert evaluator is not None, "assemble() refuses a config without data.eval"
    assembly.events.run_start()
    if conditions:
        having = {name: it for name, it in assembly.environments.items() if uses[name].tools}
        metrics = await ablate(evaluator, having, conditions, assembly.config.seed)
    else:
        metrics = await evaluator.run(0)
    assembly.events.step_end(StepReport(0, "eval", metrics))
    return dict(metrics)


async def sample(assembly: Assembly, tasks: int, episodes: int) -> dict[str, Any]:
    """`episodes` episodes of each of the first training tasks: their metrics."""
    assembly.events.run_start()
    assembly.phase.begin("sampling", tasks * episodes)
    groups = await assembly.runner.run(assembly.order().take(0, tasks), episodes, assembly.limits, round_id="rollout")
    metrics = episode_metrics(groups)
    assembly.events.step_end(StepReport(0, "rollout", metrics))
    return dict(metrics)
