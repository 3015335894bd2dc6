"""The reward: the generator's own scorer, and what happens where there is nothing to score with."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from typing import Any

import pytest
from gym_tasks import data, failures, reward, said, scores, sum_task

from toolrl.errors import RewardError
from toolrl.tools.subprocess_pool import WorkerProcess
from toolrl.types import Episode, Score
from toolrl_plugin_reasoning_gym.reward import check

pytestmark = pytest.mark.usefixtures("library")
GENERATORS = ["chain_sum", "countdown", "n_queens", "rearc", "simple_integration", "sudoku", "zebra_puzzles"]


@pytest.fixture
def right() -> str:
    return str(sum_task().answer)


def scored_by_a_new_one(*episodes: Episode) -> list[Score]:
    """The same, by a reward whose worker has yet to start."""

    async def run() -> list[Score]:
        built = reward()
        try:
            return [await built.score(episode) for episode in episodes]
        finally:
            built.close()

    return asyncio.run(run())


class TestScores:
    def test_generators_score_their_own_answers_as_right(self) -> None:
        source = data(*GENERATORS, size=30)
        tasks = {task.extra["reasoning_gym"]["generator"]: task for task in map(source.__getitem__, range(30))}
        assert set(tasks) == set(GENERATORS)
        found = scores(*(said(task, str(task.answer)) for task in tasks.values()))
        assert [score.value for score in found] == [1.0] * len(GENERATORS)
        for name, score in zip(tasks, found, strict=True):
            assert score.metrics == {
                "correct": 1.0, "answered": 1.0, f"score/{name}": 1.0,
                "timeout": 0.0, "refused": 0.0, "raised": 0.0, "died": 0.0,
            }  # fmt: skip

    def test_wrong_answers_and_none(self) -> None:
        task = sum_task()
        wrong, empty, silent = scores(said(task, "wrong"), said(task, "  "), said(task))
        assert (wrong.value, wrong.metrics["correct"], wrong.metrics["answered"]) == (0.0, 0.0, 1.0)
        for score in (empty, silent):
            assert (score.value, score.metrics["correct"], score.metrics["answered"]) == (0.0, 0.0, 0.0)
            assert not failures(score)

    def test_the_answer_stands_in_the_last_tag_or_box(self, right: str) -> None:
        texts = [f"<answer>x</answer>, no, <answer>{right}</answer>", right, f"<answer>{right}", f"\\boxed{{{right}}}"]
        episodes = [said(sum_task(), text) for text in texts]
        assert [score.value for score in scores(*episodes, form="tag")] == [1.0, 0.0, 0.0, 0.0]
        assert [score.value for score in scores(*episodes, form="boxed")] == [0.0, 0.0, 0.0, 1.0]

    def test_part_of_the_value_can_be_left_out(self, right: str) -> None:
        """The library gives a right answer among other words its share of them."""
        episode = said(sum_task(), f"It is {right}")
        part = pytest.approx(len(right) / len(f"It is {right}"))
        (whole,), (none,) = scores(episode), scores(episode, partial=False)
        assert (whole.value, whole.metrics["correct"]) == (part, 0.0)
        assert (none.value, none.metrics["score/chain_sum"]) == (0.0, part)

    def test_tuples_are_tuples_again(self) -> None:
        """This scorer compares a tuple with what it reads, and a list is none."""
        task = data({"name": "rearc", "config": {"seed": 1}})[0]
        assert scores(said(task, str(task.answer)))[0].value == 1.0


class TestWhatCantBeScored:
    @pytest.mark.parametrize("extra", [{}, {"reasoning_gym": 1}, {"reasoning_gym": {"generator": "chain_sum"}}])
    def test_a_task_of_another_data_set(self, extra: dict[str, Any]) -> None:
        with pytest.raises(RewardError, match="has no `reasoning_gym`"):
            scores(said(replace(sum_task(), extra=extra), "4"))

    @pytest.mark.parametrize(
        ("generator", "config", "says"),
        [("nothing_such", {}, "no generator 'nothing_such'"), ("chain_sum", {"nothing": 1}, "nothing")],
    )
    def test_a_row_that_doesnt_fit_the_library(self, generator: str, config: Any, says: str) -> None:
        carried = {"reasoning_gym": {"generator": generator, "config": config, "index": 0}}
        with pytest.raises(RewardError, match=says) as caught:
            scores(said(replace(sum_task(), extra=carried), "4"))
        assert caught.value.hint == "Try: toolrl doctor reasoning-gym"

    def test_a_worker_that_cant_start_is_no_zero(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(RewardError, match="can't be started: its process ended with status 1"):
            scored_by_a_new_one(said(sum_task(), "4"))

    def test_a_scorer_that_raises_is_a_zero_that_shows(self) -> None:
        """This one takes the answer to be a list of moves, and looks up a key."""
        task = data("game_of_life")[0]
        (score,) = scores(said(task, "{}"))
        assert (score.value, score.metrics["correct"]) == (0.0, 0.0)
        assert failures(score) == {"raised"}


class TestWorkers:
    def test_one_that_is_killed_at_a_question_is_a_zero_that_shows(
        self, right: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        killed: list[int] = []
        ask = WorkerProcess.ask

        def ask_and_kill(worker: WorkerProcess, request: Any, seconds: float | None = None) -> Any:
            if request.get("do") == "score" and not killed:
                assert worker.pid is not None
                killed.append(worker.pid)
                os.kill(worker.pid, signal.SIGKILL)
            return ask(worker, request, seconds)

        monkeypatch.setattr(WorkerProcess, "ask", ask_and_kill)
        first, next_one = scored_by_a_new_one(said(sum_task(), right), said(sum_task(), right))
        assert (first.value, failures(first)) == (0.0, {"died"})
        assert (next_one.value, failures(next_one)) == (1.0, set())

    def test_the_self_check_scores_an_answer(self) -> None:
        assert check() == "chain_sum scores its own answer 1"
