"""Ctrl-C, SIGTERM and SIGKILL at chosen moments of a training run, and what `--resume` makes of what they leave.

A plugin brings the run to a stand at the moment that a test wants, says so by a file, and goes on when another file
appears (or when it is interrupted): nothing depends on how fast a machine is. Interrupted runs are processes of their
own; they are resumed in this one.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

BRAKE = {
    "plugin": """
        from toolrl import Component, hookimpl

        @hookimpl
        def toolrl_tools():
            yield Component("adder", "toolrl_plugin_brake.brake:build", summary="Adds, and stands still where told.")
    """,
    "brake": '''
        """Stands still once, at the moment that BRAKE_AT names: the beginning of an episode's name for its tool's call,
        or `update-N`, `save-N` for these parts of step N, or `engine` for its start."""
        import asyncio
        import os
        import time
        from pathlib import Path
        from toolrl.protocols import EpisodeContext
        from toolrl.tools import ToolError, tool

        AT = os.environ.get("BRAKE_AT", "")
        STANDS, GO_ON = Path("brake-stands"), Path("brake-go-on")

        def build(options, context):
            stage, _, step = AT.partition("-")
            if stage == "update":
                from toolrl_plugin_torch.trainer import PolicyTrainer
                slow(PolicyTrainer, "update", lambda trainer, *_: trainer.step + 1 == int(step))
            if stage == "save":
                from toolrl_plugin_torch.loop.saver import Saver
                slow(Saver, "save", lambda saver: saver.trainer.step == int(step))
            if stage == "engine":
                from toolrl_plugin_transformers.engine import TransformersEngine
                slow(TransformersEngine, "_make_batch", lambda engine: True)
            return adder

        @tool(name="calculator")
        async def adder(expression: str, *, episode: EpisodeContext) -> str:
            """Adds.

            Args:
                expression: Two numbers with a plus.
            """
            if AT and episode.episode_id.startswith(AT):
                STANDS.touch()
                await asyncio.sleep(600)
            try:
                return str(sum(map(int, expression.split("+"))))
            except ValueError as error:
                raise ToolError("That is no sum.") from error

        def slow(owner, name, wanted):
            original = getattr(owner, name)
            def waiting(self, *args):
                if wanted(self, *args):
                    STANDS.touch()
                    while not GO_ON.exists():
                        time.sleep(0.01)
                return original(self, *args)
            setattr(owner, name, waiting)
    ''',
}

SETTINGS: dict[str, Any] = {
    "model": {"path": "runs/warm"},
    "environments": {"default": {"tools": ["adder"], "rewards": ["exact"], "max_turns": 3}},
    "evaluation": {"every": 2, "tasks": 4},
    "algorithm": {"preset": "dapo", "group_size": 2},
    "trainer": {"steps": 3, "prompts_per_step": 4, "learning_rate": 1.0e-3, "save_every": 2, "keep_checkpoints": 9},
    "run": {"name": "stopped"},
}


class Braked:
    """A workplace with the brake installed, and one run in it."""

    def __init__(self, place: Any) -> None:
        self.place = place
        self.site = place.site()
        self.site.add("brake", BRAKE)
        self.config = place.config(SETTINGS)
        self.stderr = place.folder / "stderr.txt"
        self.started: list[subprocess.Popen[bytes]] = []

    @property
    def folder(self) -> Any:
        return self.place.run("stopped")

    def standing(self, at: str, *arguments: str) -> subprocess.Popen[bytes]:
        """A training run that stands still at this moment."""
        process = self.place.start(
            "train", self.config, *arguments, site=self.site, env={"BRAKE_AT": at}, stderr=self.stderr
        )
        self.started.append(process)
        stands = self.place.folder / "brake-stands"
        wait_until(lambda: stands.exists() or process.poll() is not None)
        assert process.poll() is None, self.stderr.read_text()
        return process

    def interrupt(self, process: subprocess.Popen[bytes], number: signal.Signals) -> int:
        """Send a signal, and let the run go on once it was noticed; the exit status."""
        process.send_signal(number)
        wait_until(lambda: f"{number.name}: saving what is done" in self.stderr.read_text())
        (self.place.folder / "brake-go-on").touch()
        return process.wait(timeout=300)

    def checkpoints(self) -> list[int]:
        return [int(path.name.removeprefix("step-")) for path in sorted(self.folder.checkpoints.glob("step-*"))]


def wait_until(condition: Callable[[], bool]) -> None:
    """Far longer than it takes; a hanging run fails the test instead of the whole session."""
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


@pytest.fixture
def braked(own_place: Any) -> Iterator[Braked]:
    braked = Braked(own_place)
    yield braked
    for process in braked.started:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("at", "number", "status", "trained", "evaluated"),
    [
        pytest.param("train-1/", signal.SIGTERM, 143, [], [0], marks=pytest.mark.slow),
        ("train-2/", signal.SIGINT, 130, [1], [0]),
        ("update-2", signal.SIGTERM, 143, [1, 2], [0]),
        pytest.param("save-2", signal.SIGTERM, 143, [1, 2], [0, 2], marks=pytest.mark.slow),
        pytest.param("eval-3/", signal.SIGINT, 130, [1, 2, 3], [0, 2], marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_run_keeps_its_complete_steps_and_goes_on(
    at: str,
    number: signal.Signals,
    status: int,
    trained: list[int],
    evaluated: list[int],
    braked: Braked,
    here: Any,
    steps_of: Any,
    read_report: Any,
) -> None:
    assert braked.interrupt(braked.standing(at), number) == status

    folder = braked.folder
    assert list(steps_of(folder, "train")) == trained
    assert list(steps_of(folder, "eval")) == evaluated
    assert braked.checkpoints()[-1] == len(trained), "also the start can be gone on from"
    summary = folder.summary()
    assert (summary["status"], summary["steps"]) == ("interrupted", len(trained))
    assert "This run was interrupted" in folder.report_path.read_text()
    assert [point for run in read_report(folder)["runs"] for point in run["curves"]] or not evaluated
    assert "Traceback" not in braked.stderr.read_text()

    done = here("train", braked.config, "--resume", "--json", place=braked.place, site=braked.site)
    assert done.returncode == 0, done.stderr
    assert list(steps_of(folder, "train")) == [1, 2, 3]
    assert list(steps_of(folder, "eval")) == [0, 2, 3]
    assert braked.checkpoints()[-1] == 3
    episodes = [(item.step, item.episode.id) for item in folder.episodes(kind="train")]
    assert len(episodes) == len(set(episodes)) == 3 * 8
    summary = folder.summary()
    assert summary["status"] == "finished"
    assert summary.get("resumed_at", []) == trained[-1:]
    assert "error" not in summary
    assert "This run was interrupted" not in folder.report_path.read_text()


def test_a_run_that_is_interrupted_while_it_starts_ends_in_order(braked: Braked, here: Any, steps_of: Any) -> None:
    """No thread is left behind that computes while Python ends: that would be an abort."""
    assert braked.interrupt(braked.standing("engine"), signal.SIGINT) == 130
    assert braked.folder.summary()["status"] == "interrupted"
    assert "Traceback" not in braked.stderr.read_text()
    done = here("train", braked.config, place=braked.place, site=braked.site)
    assert done.returncode == 0, "nothing was done, so nothing is in the way"
    assert list(steps_of(braked.folder, "train")) == [1, 2, 3]


def test_a_killed_run_goes_on_from_its_last_checkpoint(braked: Braked, here: Any, steps_of: Any) -> None:
    process = braked.standing("train-3/", "--set", "trainer.save_every=1")
    done = here("report", "runs/stopped", "--json", place=braked.place)
    assert done.json()["summary"]["status"] == "running", "a report can be had while the run goes on"
    done = here("train", braked.config, "--resume", place=braked.place, site=braked.site)
    assert done.returncode == 1
    assert "another process is writing this run" in done.stderr
    process.kill()
    process.wait()

    folder = braked.folder
    assert folder.summary()["status"] == "interrupted"
    assert braked.checkpoints() == [1, 2]
    done = here("report", "runs/stopped", place=braked.place)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "stopped: interrupted, 2 of 3 steps")
    assert "The process was killed" in folder.report_path.read_text()

    # The newest checkpoint is damaged too: the one before it is taken, and its steps are done again.
    weights = folder.checkpoints / "step-000002" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    done = here("train", braked.config, "--resume", place=braked.place, site=braked.site)
    assert done.returncode == 0, done.stderr
    assert "going back to step-000001" in done.stderr
    assert list(steps_of(folder, "train")) == [1, 2, 3]
    assert list(steps_of(folder, "eval")) == [0, 2, 3]
    assert folder.summary()["resumed_at"] == [1]


@pytest.mark.slow
def test_a_second_signal_ends_at_once(braked: Braked) -> None:
    process = braked.standing("update-2")
    process.send_signal(signal.SIGINT)
    wait_until(lambda: "SIGINT: saving" in braked.stderr.read_text())
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=300) == 130
    assert braked.folder.summary()["status"] == "interrupted"
    assert braked.checkpoints() == []


# Resuming alone; no signal is needed for it.

RESUMED: dict[str, Any] = {
    "model": {"path": "runs/warm"},
    "algorithm": {"group_size": 2, "preset": "grpo", "kl_coef": 0.1},
    "trainer": {
        "steps": 4,
        "prompts_per_step": 4,
        "updates_per_step": 2,
        "learning_rate": 1.0e-3,
        "weight_decay": 0.1,
        "keep_checkpoints": 9,
    },
    "data": {"eval": None, "train": {"use": "arithmetic", "options": {"size": 7, "kinds": ["tiny_sum"]}}},
}


def test_a_deterministic_run_is_the_same_bit_for_bit(own_place: Any, here: Any) -> None:
    """With many episodes in flight, once in one go and once in two, in two passes over each step; the KL term's
    reference has moved before the first checkpoint."""
    from safetensors.torch import load_file

    settings = {
        **RESUMED,
        "algorithm": {**RESUMED["algorithm"], "reference": {"sync_every": 2}},
        "trainer": {**RESUMED["trainer"], "epochs_per_step": 2},
        "deterministic": True,
        "rollout": {"concurrency": 6},
        "evaluation": {"every": 2, "tasks": 6},
        "data": {
            "eval": {"use": "arithmetic", "options": {"size": 6, "kinds": ["tiny_sum"], "seed": 9}},
            "train": RESUMED["data"]["train"],
        },
    }
    config = own_place.config(settings)
    for name, steps, *more in (("whole", 4), ("parts", 3), ("parts", 4, "--resume")):
        sets = ("--set", f"run.name={name}", "--set", f"trainer.steps={steps}")
        done = here("train", config, *sets, *more, place=own_place)
        assert done.returncode == 0, done.stderr
    whole, parts = own_place.run("whole"), own_place.run("parts")
    assert exact_metrics(whole) == exact_metrics(parts)
    assert parts.metrics_lines("train")[3].metrics["kl"] > 0, "the resumed run starts away from its reference"
    weights = [load_file(run.checkpoints / "step-000004" / "model.safetensors") for run in (whole, parts)]
    assert all(value.equal(weights[1][name]) for name, value in weights[0].items())


def exact_metrics(run: Any) -> list[tuple[int, str, dict[str, float]]]:
    """Of each step, without what the clock says; evaluations that a resumption added at its end are left out."""
    clocked = ("time/", "speed/", "tool/")
    return [
        (line.step, line.kind, {k: v for k, v in line.metrics.items() if not k.startswith(clocked)})
        for line in run.metrics_lines()
        if line.kind == "train" or line.step % 2 == 0
    ]


def test_an_overlapping_run_goes_on_with_what_was_in_flight(own_place: Any, here: Any) -> None:
    """Every row of data is trained on once, none by tokens older than allowed, over two resumptions."""
    settings = {
        **RESUMED,
        "rollout": {"max_staleness": 2, "concurrency": 16},
        "algorithm": {"group_size": 2, "preset": "grpo", "importance": {}},
        "trainer": {**RESUMED["trainer"], "steps": 8, "prompts_per_step": 2, "updates_per_step": 1},
    }
    config = own_place.config(settings)
    for steps, more in ((3, []), (5, ["--resume"]), (8, ["--resume"])):
        sets = ("--set", "run.name=ahead", "--set", f"trainer.steps={steps}")
        done = here("train", config, *sets, *more, place=own_place)
        assert done.returncode == 0, done.stderr
    run = own_place.run("ahead")
    groups = ["/".join(item.episode.group.split("/")[:2]) for item in run.episodes(kind="train")]
    assert sorted(groups) == sorted(2 * [f"train-{step}/{number}" for step in range(1, 9) for number in range(2)])
    lines = run.metrics_lines("train")
    assert [line.step for line in lines] == list(range(1, 9))
    assert all(line.metrics["staleness/max"] <= 2 for line in lines)
    assert any(line.metrics["staleness/max"] > 0 for line in lines), "rollout and training did overlap"
    # A step of flat groups alone trains nothing, and has no ratio to report.
    ratios = [line.metrics["importance/mean"] for line in lines if "loss" in line.metrics]
    assert min(ratios) > 0
    for item in run.episodes(kind="train"):
        assert all(0 <= item.step - 1 - version <= 2 for version in item.episode.weight_versions if version >= 0)


def test_a_run_goes_on_and_is_evaluated_by_its_own_config(
    own_place: Any, here: Any, steps_of: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The values of the start need not be given again: neither `--set` nor variables that aren't secret."""
    for name, value in {"MODEL_OF_RUN": str(own_place.folder / "model"), "ROWS": "16", "NOTE": "s3cret"}.items():
        monkeypatch.setenv(name, value)
    options = {"size": "${ROWS}", "kinds": ["tiny_sum"], "split": "train"}
    changes = {"model": {"path": "${MODEL_OF_RUN}"}, "data": {"train": {"use": "arithmetic", "options": options}}}
    note = {"system_prompt": "It is ${NOTE:-nothing}."}
    config = own_place.config({**SETTINGS, **changes, "environments": {"default": note}})
    again = ("--set", "trainer.learning_rate=2.0e-3", "--set", "algorithm.group_size=2", "--set", "run.name=own")
    done = here("train", config, *again, "--set", "trainer.steps=1", place=own_place)
    assert done.returncode == 0, done.stderr
    first = own_place.run("own").config
    assert "s3cret" not in (own_place.folder / "runs" / "own" / "config.yaml").read_text()
    (own_place.folder / config).unlink()
    for name in ("MODEL_OF_RUN", "ROWS"):
        monkeypatch.delenv(name)
    done = here("train", "runs/own", "--resume", "--set", "trainer.steps=2", place=own_place)
    assert (done.returncode, caplog.messages) == (0, []), done.stderr
    folder = own_place.run("own")
    assert list(steps_of(folder, "train")) == [1, 2]
    assert folder.config == {**first, "trainer": {**first["trainer"], "steps": 2}}
    assert here("eval", "runs/own", "--json", place=own_place).returncode == 0
    # One that was moved goes on where it is now.
    folder.directory.rename(own_place.folder / "moved")
    done = here("train", "moved/", "--resume", "--set", "trainer.steps=3", "--json", place=own_place)
    assert done.returncode == 0, done.stderr
    assert (done.json()["run"], done.json()["steps"]) == (str(own_place.folder / "moved"), 3)
    # No step is left now, and that is fine; another learning rate is remarked on.
    done = here("train", "moved", "--resume", "--set", "trainer.learning_rate=3.0e-3", place=own_place)
    assert done.returncode == 0, done.stderr
    assert "no step is left" in caplog.text
    assert "trainer.learning_rate: 0.002 -> 0.003" in caplog.text


def test_fine_tuning_saves_on_the_way_and_goes_on_too(own_place: Any, here: Any) -> None:
    demonstrations = {"kinds": ["tiny_sum"], "no_tool_share": 0.0}
    sft = {"data": {"use": "arithmetic_demos", "options": demonstrations}, "batch_size": 4, "learning_rate": 1.0e-3}
    config = own_place.config({"sft": {**sft, "steps": 4, "save_every": 1, "keep_checkpoints": 2}})
    for name, *more in (("whole", "sft.steps=4"), ("parts", "sft.steps=2"), ("parts", "sft.steps=4", "--resume")):
        done = here("sft", config, "--set", f"run.name={name}", "--set", *more, place=own_place)
        assert done.returncode == 0, done.stderr
    whole, parts = (own_place.run(name) for name in ("whole", "parts"))
    assert sorted(path.name for path in parts.checkpoints.glob("step-*")) == ["step-000003", "step-000004"]
    losses = [[line.metrics["loss"] for line in run.metrics_lines("sft")] for run in (parts, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
