"""The reward `sandbox_fusion` against a server that answers as a test says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sandbox_answers import finished

from toolrl.errors import DataError, RewardError
from toolrl.types import Score
from toolrl_common import http_client
from toolrl_plugin_sandbox_fusion.options import SandboxRewardOptions
from toolrl_plugin_sandbox_fusion.reward import SandboxReward
from toolrl_testing import make_build_context, make_episode, make_task
from toolrl_testing.http_stub import HttpReply, HttpStub

CASES = {"inputs": ["1", "2", "3", "4"], "outputs": ["2", "4", "6", "8"]}
TEXT = "So:\n```python\nprint(2 * int(input()))\n```"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(http_client, "LONGEST_PAUSE", 0.02)


def score(
    stub: HttpStub,
    *texts: str,
    answer: Any = CASES,
    extra: dict[str, Any] | None = None,
    said: str | None = None,
    **options: Any,
) -> Score:
    reward = SandboxReward(
        SandboxRewardOptions(**{"sandbox_fusion_url": stub.url, "patience": 2.0, **options}), make_build_context()
    )
    task = make_task(answer=answer, extra=extra or {})
    return asyncio.run(reward.score(make_episode(*texts, task=task, answer=said)))


def doubling(request: dict[str, Any]) -> HttpReply:
    return HttpReply(finished(f"{2 * int(request['stdin'])}\n"))


class TestScore:
    def test_all_right(self, stub: HttpStub) -> None:
        stub.answer = doubling
        found = score(stub, TEXT)
        assert found.value == 1.0
        assert found.metrics == {
            "correct": 1.0, "answered": 1.0, "pass_rate": 1.0, "wrong": 0.0, "api_error": 0.0, "runtime_error": 0.0,
            "timeout": 0.0, "compile_error": 0.0,
        }  # fmt: skip
        assert sorted(request["stdin"] for request in stub.requests) == ["1", "2", "3", "4"]
        request = stub.requests[0]
        assert request["code"] == "\nprint(2 * int(input()))\n"
        assert (request["compile_timeout"], request["run_timeout"], request["memory_limit_MB"]) == (10.0, 10.0, 1024)

    def test_the_share_that_passes(self, stub: HttpStub) -> None:
        answers = {
            "1": HttpReply(finished("2\n")),
            "2": HttpReply(finished("5\n")),
            "3": HttpReply(finished("", "Traceback", 1)),
            "4": HttpReply(finished("", status="Failed", run_result={"status": "TimeLimitExceeded"})),
        }
        stub.answer = lambda request: answers[request["stdin"]]
        found = score(stub, TEXT)
        assert found.value == 0.25
        assert found.metrics["correct"] == 0.0
        assert [found.metrics[name] for name in ("wrong", "runtime_error", "timeout")] == [0.25] * 3

    def test_continuous_takes_the_first_ten(self, stub: HttpStub) -> None:
        stub.answer = doubling
        cases = {"inputs": [str(n) for n in range(20)], "outputs": [str(2 * n) for n in range(5)] + ["?"] * 15}
        assert score(stub, TEXT, answer=cases).value == 0.25
        assert len(stub.requests) == 20
        assert score(stub, TEXT, answer=cases, continuous=True).value == 0.5
        assert len(stub.requests) == 30

    def test_without_a_program_nothing_is_asked(self, stub: HttpStub) -> None:
        for texts in ((), ("",), ("I don't know.",)):
            found = score(stub, *texts)
            assert (found.value, found.metrics) == (0.0, {"correct": 0.0, "answered": 0.0})
        assert stub.requests == []

    def test_where_the_program_is_looked_for(self, stub: HttpStub) -> None:
        stub.answer = doubling
        assert score(stub, TEXT, "Done.").value == 0.0
        assert score(stub, TEXT, "Done.", judge="all").value == 1.0
        assert score(stub, "x", said=TEXT, judge="answer").value == 1.0

    def test_a_function_is_called_with_the_arguments(self, stub: HttpStub) -> None:
        stub.answer = lambda request: HttpReply(finished("3\n"))
        cases = {"fn_name": "add", "inputs": ["1\n2"], "outputs": ["3"]}
        assert score(stub, "```python\ndef add(a, b): return a + b\n```", answer=cases).value == 1.0
        assert stub.requests[0]["stdin"] == "1\n2"
        assert "def add(a, b)" in stub.requests[0]["code"]

    @pytest.mark.parametrize("answer", [None, "4", "{}", {"inputs": [], "outputs": []}])
    def test_a_task_without_cases_is_a_fault_of_the_data(self, stub: HttpStub, answer: Any) -> None:
        with pytest.raises(DataError, match="test cases") as error:
            score(stub, TEXT, answer=answer)
        assert error.value.where == "task 'task-0'"


class TestFaults:
    def test_an_episode_that_the_sandbox_never_ran_fails(self, stub: HttpStub) -> None:
        stub.answer = lambda request: HttpReply(finished(status="SandboxError", message="out of disk"))
        with pytest.raises(RewardError, match="none of the 4 test cases.*out of disk") as error:
            score(stub, TEXT)
        assert error.value.where == stub.url

    def test_a_single_fault_counts_as_not_passed(self, stub: HttpStub) -> None:
        def answer(request: dict[str, Any]) -> HttpReply:
            return HttpReply(b"no", 500) if request["stdin"] == "1" else doubling(request)

        stub.answer = answer
        found = score(stub, TEXT)
        assert found.value == 0.75
        assert found.metrics["api_error"] == 0.25

    @pytest.mark.parametrize("status", [429, 502, 503, 504])
    def test_a_busy_sandbox_is_asked_again(self, stub: HttpStub, status: int) -> None:
        tries: dict[str, int] = {}

        def answer(request: dict[str, Any]) -> HttpReply:
            with stub.lock:
                tries[request["stdin"]] = tries.get(request["stdin"], 0) + 1
            return HttpReply(b"", status) if tries[request["stdin"]] < 4 else doubling(request)

        stub.answer = answer
        assert score(stub, TEXT).value == 1.0
        assert set(tries.values()) == {4}


COMPILE_ERROR = finished(status="Failed", compile_result={"status": "Finished", "return_code": 1}, run_result=None)


class TestCompileErrors:
    def score(self, stub: HttpStub, count: int, at_once: int) -> dict[str, float]:
        """Shares of those that passed and of those that didn't compile."""
        cases = {"inputs": [str(n) for n in range(count)], "outputs": ["ok"] * count}
        return dict(score(stub, TEXT, answer=cases, max_concurrent=at_once).metrics)

    @pytest.mark.parametrize("at_once", [1, 8])
    def test_every_case_after_the_first_is_one(self, stub: HttpStub, at_once: int) -> None:
        stub.answer = lambda request: HttpReply(COMPILE_ERROR if request["stdin"] == "1" else finished("ok\n"))
        found = self.score(stub, 4, at_once)
        assert (found["pass_rate"], found["compile_error"]) == (0.25, 0.75)


class TestConcurrency:
    async def test_no_more_than_the_limit_at_once(self, stub: HttpStub) -> None:
        def answer(request: dict[str, Any]) -> HttpReply:
            stub.meet(3)
            return HttpReply(finished("ok\n"))

        stub.answer = answer
        options = SandboxRewardOptions(sandbox_fusion_url=stub.url, max_concurrent=3)
        reward = SandboxReward(options, make_build_context())
        cases = {"inputs": [""] * 8, "outputs": ["ok"] * 8}
        episodes = [make_episode(TEXT, task=make_task(answer=cases)) for _ in range(3)]
        assert [found.value for found in (await asyncio.gather(*(reward.score(episode) for episode in episodes)))] == [
            1.0
        ] * 3
        assert len(stub.requests) == 24
        assert stub.most_at_once == 3
