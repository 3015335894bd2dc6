"""A student learns from a teacher, token by token: `algorithm.distillation` in a whole run."""

from __future__ import annotations

from typing import Any

import pytest


def steps_of(workplace: Any, name: str) -> list[dict[str, float]]:
    return [line.metrics for line in workplace.run(name).metrics_lines("train")]


def distilled(here: Any, config: str, name: str, *settings: str) -> Any:
    settings = (
        f"run.name={name}",
        "model.path=model",
        "algorithm.distillation.teachers.default.model=runs/warm",
        *settings,
    )
    return here("train", config, *(part for value in settings for part in ("--set", value)))


@pytest.mark.parametrize("kl_as", ["advantage", "loss"])
def test_a_student_approaches_its_teacher(trained: Any, here: Any, workplace: Any, kl_as: str) -> None:
    name = f"distilled-{kl_as}"
    done = distilled(
        here, trained.config, name, f"algorithm.distillation.kl_as={kl_as}", "trainer.steps=8",
        "algorithm.group_size=1", "algorithm.drop_flat_groups=false", "trainer.learning_rate=3e-3",
        "trainer.prompts_per_step=16",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    steps = steps_of(workplace, name)
    assert steps[-1]["distillation/kl"] < 0.75 * steps[0]["distillation/kl"]
    assert 0 < steps[0]["time/teacher"] < steps[0]["time/rollout"]


def test_replayed_groups_keep_their_scores(trained: Any, here: Any, workplace: Any) -> None:
    """Rollout beside training: each group is scored when it ends, and its record holds the scores."""
    overlap = ("rollout.max_staleness=1", "rollout.replay=0.5", "trainer.steps=2")
    done = distilled(here, trained.config, "beside", *overlap, "algorithm.importance={}")
    assert done.returncode == 0, done.stderr
    stored = [it for it in workplace.run("beside").episodes() if it.kind == "train"]
    assert stored
    for it in stored:
        (trajectory,) = it.episode.trajectories
        scored = [bool(value) for value in trajectory.teacher_logprobs or ()]
        assert scored == [bool(bit) for bit in trajectory.loss_mask]


FLAKY = {
    "plugin": """
        from toolrl import Component, hookimpl

        @hookimpl
        def toolrl_engines():
            place = "toolrl_plugin_flaky.engine"
            yield Component("flaky", f"{place}:Flaky", summary="Scores a step.", options=f"{place}:Options")
    """,
    "engine": """
        from typing import ClassVar
        from pydantic import BaseModel
        from toolrl.errors import EngineError

        class Options(BaseModel):
            scores_tokens: ClassVar = True

        class Flaky:
            def __init__(self, options, context):
                self.left = 20
            async def start(self): ...
            async def stop(self): ...
            async def close(self, session): ...
            async def update_weights(self, weights, version): ...
            async def generate(self, prompt, sampling, *, session, media=()): ...
            async def score(self, ids, start, *, temperature=1.0, media=()):
                self.left -= 1
                if self.left < 0:
                    raise EngineError("the teacher's server is gone")
                return [-1.0] * (len(ids) - start)
    """,
}


def test_a_teacher_that_is_gone_stops_the_run_with_its_last_step_saved(
    trained: Any, here: Any, workplace: Any, plugin_site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolrl_plugin_torch.loop.teachers.PAUSES", (0.0,))
    plugin_site.add("flaky", FLAKY)
    settings = ("run.name=gone", "algorithm.distillation.teachers.default.engine=flaky", "trainer.save_every=0")
    done = here("train", trained.config, *(part for it in settings for part in ("--set", it)), site=plugin_site)
    assert done.returncode == 1
    assert "algorithm.distillation.teachers.default: the teacher's server is gone" in done.stderr
    assert [path.name for path in workplace.run("gone").checkpoints.glob("step-*")] == ["step-000001"]
    assert len(steps_of(workplace, "gone")) == 1


def test_what_cannot_teach_is_refused(trained: Any, here: Any) -> None:
    done = distilled(here, trained.config, "untaught", "algorithm.distillation.teachers.default.model=runs/none")
    assert done.returncode == 1
    assert "algorithm.distillation.teachers.default.model: there is no folder 'runs/none' here" in done.stderr
    engine = "algorithm.distillation.teachers.default.engine={use: chat, options: {base_url: 'http://x', model: m}}"
    done = here("config", "check", trained.config, "--set", engine)
    assert "algorithm.distillation.teachers.default.engine: 'chat' can't be a teacher" in done.stderr
