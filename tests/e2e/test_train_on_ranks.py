"""`torchrun -m toolrl train` with two ranks: the run of one process, checkpoints for any number of ranks, and an end
with a reason whatever happens to one of them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

SETTINGS: dict[str, Any] = {
    "model": {"path": "runs/warm"},
    # Fewer tasks than two steps take: those of known pass rates are skipped then, on all ranks alike.
    "data": {"train": {"use": "arithmetic", "options": {"split": "train", "size": 6, "kinds": ["tiny_sum"]}}},
    "algorithm": {"difficulty": {}},
    "trainer": {"steps": 2, "prompts_per_step": 5, "learning_rate": 1.0e-3, "tokens_per_microbatch": 256},
    "run": {"name": "alone"},
}
ADDER = {"default": {"tools": ["adder"], "rewards": ["exact"], "max_turns": 3}}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "toolrl"]

TRIP = {
    "plugin": """
        from toolrl import Component, hookimpl

        @hookimpl
        def toolrl_tools():
            yield Component("adder", "toolrl_plugin_trip.trip:build", summary="Adds, and trips where told.")
    """,
    "trip": '''
        """The second rank trips in its update, or in a call of its second step, as TRIP says."""
        import os
        import time
        from pathlib import Path
        from toolrl.protocols import EpisodeContext
        from toolrl.tools import ToolError, tool

        TRIP = os.environ.get("TRIP", "") if os.environ.get("RANK") == "1" else ""

        def build(options, context):
            if TRIP == "update":
                from toolrl_plugin_torch.trainer import PolicyTrainer
                original = PolicyTrainer._one_update
                def tripping(self, *args, **more):
                    if self.step == 1:
                        raise OSError("a cosmic ray")
                    return original(self, *args, **more)
                PolicyTrainer._one_update = tripping
            return adder

        @tool(name="calculator")
        def adder(expression: str, *, episode: EpisodeContext) -> str:
            """Adds.

            Args:
                expression: Two numbers with a plus.
            """
            if episode.episode_id.startswith("train-2"):
                if TRIP == "exit":
                    os._exit(7)
                if os.environ.get("TRIP") == "everybody stands":
                    Path("stands-" + os.environ["RANK"]).touch()
                    time.sleep(600)
            try:
                return str(sum(map(int, expression.split("+"))))
            except ValueError as error:
                raise ToolError("That is no sum.") from error
    ''',
}


class Ranks:
    """Commands of two ranks in a workplace."""

    def __init__(self, place: Any, environment: Any) -> None:
        self.place = place
        self._environment = environment
        self.site = place.site()
        self.site.add("trip", TRIP)

    def config(self, name: str, **changes: Any) -> str:
        settings = {**SETTINGS, "run": {"name": name}}
        return str(self.place.config({**settings, **changes}, name=name))

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *TORCHRUN, *arguments],
            cwd=self.place.folder,
            env=self._environment(self.site, variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **variables)
        try:
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()
        return process.returncode, out, err

    def train(self, name: str, *arguments: str, **changes: Any) -> Any:
        """A run of two ranks that goes well."""
        status, _, err = self.run("train", self.config(name, **changes), *arguments)
        assert status == 0, err
        return self.place.run(name)

    def alone(self, name: str, *arguments: str, **changes: Any) -> Any:
        """The same in one process."""
        done = self.place.toolrl("train", self.config(name, **changes), *arguments, site=self.site)
        assert done.returncode == 0, done.stderr
        return self.place.run(name)


@pytest.fixture
def ranks(own_place: Any, process_environment: Any) -> Ranks:
    return Ranks(own_place, process_environment)


def alike(ours: Any, expected: Any) -> None:
    """Every line of metrics but times."""
    first, second = ours.metrics_lines(), expected.metrics_lines()
    assert [(line.step, line.kind, line.episodes) for line in first] == [
        (line.step, line.kind, line.episodes) for line in second
    ]
    for one, other in zip(first, second, strict=True):
        assert one.metrics.keys() == other.metrics.keys()
        for key, value in other.metrics.items():
            if not key.startswith(("time/", "speed/", "logprob_mismatch/")):
                assert one.metrics[key] == pytest.approx(value, rel=1e-4, abs=1e-6), (one.step, one.kind, key)


def test_two_ranks_train_as_one_process_does_and_go_on_from_each_others_checkpoints(ranks: Ranks) -> None:
    expected, ours = ranks.alone("alone"), ranks.train("together")
    alike(ours, expected)
    assert any(line.metrics.get("grad_norm", 0.0) > 0.0 for line in ours.metrics_lines("train"))
    first, second = (
        {item.episode.id: item.episode.ids for item in folder.episodes(kind="train")} for folder in (ours, expected)
    )
    assert first == second, "the same tasks, with the same seeds"
    assert len(first) == 2 * 5 * 4
    assert ours.summary()["status"] == "finished"
    cut = {"trainer": {**SETTINGS["trainer"], "sequence_parallel": 2}}
    alike(ranks.train("cut", **cut), expected)
    done = ranks.place.toolrl("train", ranks.config("refused", **cut), site=ranks.site)
    assert "trainer.sequence_parallel: 2 doesn't divide the number of ranks, 1" in done.stderr
    runs = ranks.place.folder / "runs"
    longer = ("--resume", "--set", "trainer.steps=3", "--set", "trainer.save_every=0.001s")
    assert (ours.checkpoints / "step-000002/trainer/shards/.metadata").is_file()
    shutil.copytree(runs / "together", runs / "two-to-one")
    shutil.copytree(runs / "alone", runs / "one-to-two")
    expected = ranks.alone("alone", *longer)
    alike(ranks.train("together", *longer), expected)
    alike(ranks.alone("two-to-one", *longer), expected)
    alike(ranks.train("one-to-two", *longer), expected)


@pytest.mark.parametrize(
    ("trip", "told"),
    [
        ("update", "rank 1 ended the run: OSError: a cosmic ray"),
        ("exit", "rank 0 lost the other ranks at 'the groups of train-2'"),
    ],
)
def test_all_ranks_end_with_the_reason_of_the_first(ranks: Ranks, trip: str, told: str) -> None:
    config = ranks.config("tripped", environments=ADDER)
    status, _, err = ranks.run("train", config, TRIP=trip)
    assert status != 0
    assert told in err
    summary = ranks.place.run("tripped").summary()
    assert summary["status"] == "failed"
    assert told in summary["error"]["message"]


@pytest.mark.slow
def test_sigterm_saves_what_is_done(ranks: Ranks) -> None:
    process = ranks.start("train", ranks.config("ended", environments=ADDER), TRIP="everybody stands")
    stands = [ranks.place.folder / f"stands-{rank}" for rank in range(2)]
    try:
        give_up = time.monotonic() + 240
        while not any(path.exists() for path in stands):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < give_up
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert "SIGTERM: saving what is done" in err
    folder = ranks.place.run("ended")
    assert folder.summary()["status"] == "interrupted"
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-000001"]


def test_what_ranks_can_not_do_is_told(ranks: Ranks) -> None:
    status, _, err = ranks.run("train", ranks.config("stale", rollout={"max_staleness": 1}))
    assert status != 0
    assert "rollout.max_staleness: where weights are spread over ranks" in err
