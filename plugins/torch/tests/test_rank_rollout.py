"""Groups that the first rank gets reach all ranks, on a real process group: its results, its errors, interruptions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

RANK = '''
"""One of two ranks: `python rank.py FOLDER`."""
import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from toolrl.errors import DataError
from toolrl.rollouts.environment import Limits
from toolrl_plugin_torch.sharding.rank_rollout import Rank0Rollout, Rank0Batches
from toolrl_plugin_torch.sharding.process_group import join
from toolrl.loop.ranks import OtherRankError, RankError
from toolrl_plugin_torch.loop.batches import DataPosition
from toolrl.types import Group, Message, Task

LIMITS = Limits(max_turn_tokens=1, max_episode_tokens=1)

def group(name, note=None):
    return Group(name, Task(name, (Message("user", "?"),), extra={"note": note}), ())

class Sampler:
    version = 0
    async def run(self, tasks, group_size, limits, *, round_id, training=True):
        if round_id == "bad":
            raise DataError("no tasks")
        return [group(f"{round_id}/{task}") for task in tasks]
    async def update_weights(self, weights, version):
        self.version = version

class Weights:
    def __init__(self):
        self.calls = []
    def __getattr__(self, name):
        return lambda: self.calls.append(name)

class Batches:
    replayed = 1
    seen = ()
    async def take(self, step):
        if step == 2:
            return [group("odd", note=lambda: None)]
        if step == 3:
            await asyncio.sleep(600)
        return [group(f"step-{step}"), group("again")]
    def trained(self, step):
        self.seen += (("trained", step),)
    def weights_updated(self, version):
        self.seen += (("weights", version),)
    def metrics(self):
        return {"groups/waiting": 3.0}
    def position(self, step):
        return DataPosition(7)
    def resume(self, step, position):
        self.seen += (("resume", step),)
    async def close(self):
        self.seen += (("closed",),)

async def main(ranks):
    sampler = Sampler() if ranks.first else None
    rollout = Rank0Rollout(ranks, sampler)
    found = await rollout.run(["a", "b"], 2, LIMITS, round_id="eval-0", training=False)
    assert [it.id for it in found] == ["eval-0/a", "eval-0/b"], found
    weights = Weights()
    await rollout.update_weights(weights, 5)
    assert sampler is None or sampler.version == 5
    assert weights.calls == (["lead", "release"] if ranks.first else ["follow"])
    try:
        await rollout.run(["a"], 2, LIMITS, round_id="bad")
    except DataError:
        assert ranks.first
    except OtherRankError as error:
        assert not ranks.first and "no tasks" in str(error)
    else:
        raise AssertionError("it fails")
    supply = Rank0Batches(ranks, Batches() if ranks.first else None)
    supply.resume(0, DataPosition(0))
    assert [it.id for it in await supply.take(1)] == ["step-1", "again"]
    assert supply.replayed == 1
    supply.trained(1)
    supply.weights_updated(1)
    assert supply.metrics() == ({"groups/waiting": 3.0} if ranks.first else {})
    try:
        await supply.take(2)
    except RankError as error:
        assert "can't send what it has at 'the groups of step 2'" in str(error), error
    else:
        raise AssertionError("it can't be sent")
    asyncio.get_running_loop().call_later(0.2, ranks.interrupt)
    try:
        await supply.take(3)
    except asyncio.CancelledError:
        pass
    await supply.close()
    if ranks.first:
        assert supply.position(1) == DataPosition(7)
        assert supply._source.seen == (("resume", 0), ("trained", 1), ("weights", 1), ("closed",))

ranks = join("cpu", 120.0)
asyncio.run(main(ranks))
ranks.leave()
# A thread of gloo that is left would end the process by SIGABRT, now and then.
threads = []
for path in Path("/proc/self/task").glob("*/comm"):
    with suppress(OSError):  # A thread ended.
        threads.append(path.read_text().strip())
assert "pt_gloo_runloop" not in threads, threads
'''


def test_what_the_first_rank_gets_reaches_all(on_ranks: Any, tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    on_ranks(2, [sys.executable, str(script)])
