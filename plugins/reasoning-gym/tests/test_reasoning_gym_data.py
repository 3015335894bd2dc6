"""The data set: tasks by index, the same in every process."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from gym_tasks import data

from toolrl.errors import ConfigError, DataError
from toolrl_common.workers import RestartingWorker
from toolrl_plugin_reasoning_gym import process as processes
from toolrl_plugin_reasoning_gym.options import DataOptions
from toolrl_plugin_reasoning_gym.process import worker

pytestmark = pytest.mark.usefixtures("library")
HASH_ORDERED = ["isomorphic_strings", "ransom_note", "word_ladder", "polynomial_multiplication"]
"""Generators that go through sets: with another PYTHONHASHSEED they make other tasks."""
GLOBAL_RANDOM = ["list_functions", "codeio"]
"""Generators that draw from the global random numbers."""


def names() -> list[str]:
    process = worker()
    try:
        return [item["name"] for item in process.ask({"do": "list"}, 300)["generators"]]
    finally:
        process.close()


def entries(process: RestartingWorker, generator: str, indices: list[int], seed: int = 5 << 20) -> list[Any]:
    config = {"seed": seed, "size": 40}
    asked = ({"do": "entry", "generator": generator, "config": config, "index": index} for index in indices)
    return [process.ask(request, 300) for request in asked]


class TestTasks:
    def test_a_task_has_question_answer_and_what_its_scorer_needs(self) -> None:
        source = data("chain_sum", size=3, environment="calc", system_prompt="Be short.", instruction="Tag it.")
        task = source[1]
        carried = task.extra["reasoning_gym"]
        assert task.id == "chain_sum-0-1"
        assert task.environment == "calc"
        assert [message.role for message in task.messages] == ["system", "user"]
        assert task.messages[0].content == "Be short."
        assert task.messages[1].content.endswith("\n\nTag it.")
        assert task.answer
        assert carried["index"] == 1
        assert carried["generator"] == "chain_sum"
        assert json.loads(json.dumps(carried)) == carried

    def test_a_seed_of_a_generators_own_gives_the_librarys_tasks(self) -> None:
        import reasoning_gym  # type: ignore[import-untyped]

        source = data({"name": "basic_arithmetic", "config": {"seed": 42}}, instruction="")
        theirs = reasoning_gym.create_dataset("basic_arithmetic", seed=42, size=8)
        assert [source[i].messages[0].content for i in range(8)] == [theirs[i]["question"] for i in range(8)]


class TestMixtures:
    def test_weights_are_shares_and_each_generator_counts_its_own(self) -> None:
        source = data({"name": "chain_sum", "weight": 3}, "coin_flip", size=400)
        made = [source[index].extra["reasoning_gym"] for index in range(0, 400, 10)]
        shares = Counter(item["generator"] for item in made)
        assert 20 <= shares["chain_sum"] <= 38
        for name in shares:
            own = [item["index"] for item in made if item["generator"] == name]
            assert own == sorted(set(own))

    def test_a_longer_data_set_begins_with_the_shorter_one(self) -> None:
        short, long = data("chain_sum", "lcm", size=6), data("chain_sum", "lcm", size=60)
        assert [short[i].messages for i in range(6)] == [long[i].messages for i in range(6)]

    def test_one_generator_may_stand_twice_with_other_settings(self) -> None:
        easy = {"name": "chain_sum", "config": {"max_terms": 2}, "environment": "easy"}
        hard = {"name": "chain_sum", "config": {"min_terms": 8, "max_terms": 8}}
        source = data(easy, hard, size=30, environment="hard")
        tasks = [source[i] for i in range(30)]
        least = {(task.environment, task.extra["reasoning_gym"]["config"].get("min_terms")) for task in tasks}
        assert least == {("easy", None), ("hard", 8)}
        assert len({source[i].id for i in range(30)}) == 30


class TestDeterminism:
    def test_all_generators_make_the_same_tasks_in_every_process_and_order(self) -> None:
        here, there = worker(), worker()
        try:
            for name in names():
                first = entries(here, name, [1, 4])
                assert entries(there, name, [4, 1])[::-1] == first, name
        finally:
            here.close()
            there.close()

    @pytest.mark.parametrize("name", [*HASH_ORDERED, *GLOBAL_RANDOM])
    def test_sets_and_global_chance_decide_nothing(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        found = []
        for seed in ("1", "2"):
            monkeypatch.setenv("PYTHONHASHSEED", seed)
            process = worker()
            try:
                found.append(entries(process, name, list(range(12))))
            finally:
                process.close()
        assert found[0] == found[1]

    def test_neighbouring_seeds_share_no_task(self) -> None:
        """In the library itself task 1 of seed 0 is task 0 of seed 1."""
        sources = [data("chain_sum", size=40, seed=seed) for seed in (0, 1)]
        questions = [{source[i].messages[0].content for i in range(40)} for source in sources]
        assert not questions[0] & questions[1]
        assert len(questions[0]) == 40


class TestMistakes:
    def test_all_are_told_with_what_there_is(self) -> None:
        with pytest.raises(ConfigError) as caught:
            data("chain_sun", {"name": "coin_flip", "config": {"min_trial": 3}}, "chain_sum")
        first, second = caught.value.problems
        assert first == "generators[0]: reasoning_gym has no generator 'chain_sun'"
        assert "coin_flip refuses its settings: " in second
        assert "min_trial" in second
        assert caught.value.hint is not None

    def test_settings_that_the_generator_refuses(self) -> None:
        with pytest.raises(ConfigError, match="chain_sum refuses its settings: .*min_terms"):
            data({"name": "chain_sum", "config": {"min_terms": -1}})

    def test_check_files_tells_them_before_a_run(self) -> None:
        with pytest.raises(ConfigError, match="nothing_such"):
            DataOptions.model_validate({"generators": ["nothing_such"]}).check_files()
        DataOptions.model_validate({"generators": ["lcm"]}).check_files()

    def test_a_task_that_cant_be_made_names_its_generator(self) -> None:
        source = data("word_ladder")
        with pytest.raises(DataError, match=r"task 2: the generator 'word_ladder' can't make its task 2") as caught:
            source._plan = (*source._plan[:2], [1])  # the library bounds this generator's index by its size
            source[2]
        assert caught.value.hint


class TestTheWorker:
    def test_a_lost_worker_is_started_again(self) -> None:
        source = data("lcm")
        before = source[3]
        running = processes.generators()._process._worker._process
        os.kill(running.pid, signal.SIGKILL)
        running.wait(60)
        assert source[3] == before

    def test_no_secret_of_the_run_reaches_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("A_SECRET_KEY", "hunter2")
        process = worker()
        try:
            process.ask({"do": "list"}, 60)
            assert process._worker is not None
            environment = Path(f"/proc/{process._worker.pid}/environ").read_bytes()
        except FileNotFoundError:
            pytest.skip("no /proc here")
        finally:
            process.close()
        assert b"PYTHONHASHSEED=0" in environment
        assert b"hunter2" not in environment
        assert set(processes._SET) <= {part.partition(b"=")[0].decode() for part in environment.split(b"\0")}
