"""The reward `verl`, and the scorers that tools call."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from toolrl.errors import ConfigError, RewardError, ToolrlError
from toolrl.plugins.registry import load_registry
from toolrl.types import CallRecord, Episode, RewardEntry, Score, ToolCall, ToolResult
from toolrl_plugin_verl.options import VerlRewardOptions
from toolrl_plugin_verl.reward import VerlReward
from toolrl_plugin_verl.utils.reward_score import default_compute_score, geo3k, gsm8k, math_dapo, math_reward
from toolrl_plugin_verl.utils.reward_score.default import scorer_of
from toolrl_testing import FakeChatFormat, make_build_context, make_episode, make_task


def episode(*texts: str, source: Any = "openai/gsm8k", answer: Any = "18", **fields: Any) -> Episode:
    extra = {"data_source": source, "extra_info": fields.pop("extra_info", {})}
    return make_episode(*texts, task=make_task(answer=answer, extra=extra), **fields)


def score(one: Episode, **options: Any) -> Score:
    reward = VerlReward(VerlRewardOptions(**options), make_build_context("verl", where="rewards[0]"))
    return asyncio.run(reward.score(one))


GSM, MATH, DAPO, GEO = "openai/gsm8k", "lighteval/MATH", "math_dapo", "hiyouga/geometry3k"


@pytest.mark.parametrize(
    ("source", "answer", "text", "value"),
    [
        (GSM, "18", "So #### 18", 1.0),
        (GSM, "18", "So it is 18", 0.0),
        (GSM, "18", "#### 18.", 0.0),
        (GSM, "18", "#### 18.0", 0.0),
        (GSM, "18", "####18", 0.0),
        (GSM, "18", "#### $18", 0.0),
        (GSM, "1800", "#### 3, no, #### 1,800", 1.0),
        (GSM, "18", "#### 18" + " " * 300, 0.0),
        (MATH, "\\frac{1}{2}", "It is \\boxed{0.5}", 1.0),
        (MATH, "\\frac{1}{2}", "It is 0.5", 0.0),
        (MATH, "\\frac{1}{2}", "\\boxed{\\frac24}", 0.0),
        (MATH, "\\frac{3}{4}", "\\boxed{x = 3/4}", 1.0),
        (MATH, "12", "\\boxed{12\\text{ cm}}", 1.0),
        (MATH, "5%", "\\boxed{5}", 0.0),
        (MATH, "5", "\\boxed{5%}", 0.0),
        (MATH, "5%", "\\boxed{5%}", 1.0),
        (MATH, "5\\%", "\\boxed{5}", 1.0),
        (MATH, "5", "\\boxed{5\\\\%}", 1.0),
        (MATH, "12", "\\boxed{12 cm}", 0.0),
        (MATH, "30", "\\boxed{30^\\circ}", 1.0),
        (MATH, "4", "\\boxed 4$ holds", 1.0),
        (MATH, "4", "\\boxed{4} or \\boxed", 0.0),
        (MATH, "4", "\\fbox{4}", 0.0),
        (MATH, "\\frac", "\\boxed{\\frac}", 1.0),
        ("HuggingFaceH4/MATH-500", "x+1", "\\boxed{1+x}", 0.0),
        ("aime24", "204", "Answer: \\boxed{204}", 1.0),
        ("aime24", "204", "Answer: 204.", -1.0),
        (DAPO, "204", "\\boxed{3}\nAnswer: $x = 204$", 1.0),
        (DAPO, "\\frac{1}{2}", "Answer: 3\nAnswer: \\frac12", 1.0),
        (DAPO, "12", "answer : 12 cm", 1.0),
        (DAPO, "1234", "Answer: 1,234", 1.0),
        (DAPO, "\\frac{1}{2}", "Answer: 0.5", -1.0),
        (DAPO, "204", "\\boxed{204}", 1.0),
        (DAPO, "", "\\boxed{}", 1.0),
        (DAPO, "204", "Answer: [INVALID]\n\\boxed{204}", 1.0),
        (DAPO, "204", "\\boxed{ 204 }", -1.0),
        (DAPO, "204", "\\boxed{204}" + " " * 100, -1.0),
        (DAPO, "204", "nothing", -1.0),
        (GSM, ["3", "4"], "#### 4", 1.0),
        (GEO, "48", "<think>easy</think> \\boxed{48}", 1.0),
        (GEO, "48", "\\boxed{48}", 0.9),
        (GEO, "48", "<think>hm</think> \\boxed{4}", 0.1),
        (GEO, "48", "\\boxed{48} \\boxed{48", 0.0),
        (GEO, "2 \\sqrt { 221 }", "\\boxed{2\\sqrt{221}}", 0.9),
        (GEO, "2 \\sqrt { 221 }", "\\boxed{29.73}", 0.0),
        (GEO, "8\\sqrt{2}", "\\boxed{\\sqrt{128} \\text{ cm}}", 0.9),
        (GEO, "2", "\\boxed{\\frac{4}{2}}", 0.0),
        (GEO, "2", "\\boxed{\\sqrt{4}}", 0.0),
        (GEO, "12.5", "\\boxed{12.50}", 0.9),
        (GEO, "12.5", "\\boxed{12.4999999}", 0.0),
        (GEO, "12", "\\boxed{x = 12}", 0.9),
        (GEO, "12", "\\boxed{AB = 12}", 0.0),
        (GEO, "12", "\\boxed{12 cm^2}", 0.9),
        (GEO, "12", "\\boxed{12 mm}", 0.0),
        (GEO, "7", "\\boxed{007}", 0.9),
    ],
)
def test_scores_are_those_of_verl(source: str, answer: Any, text: str, value: float) -> None:
    result = score(episode(text, source=source, answer=answer))
    assert result.value == pytest.approx(value)
    assert result.metrics["correct"] == float(value >= 0.9)


def test_answers_that_would_hang_are_wrong() -> None:
    for text in ("9^9^9^9^9", "(" * 3000, "\\frac{", ""):
        assert not geo3k.grade_answer(text, "4.5", timeout=1.0)
    assert geo3k.grade_answer("9/2", "4.5", timeout=60.0)
    assert geo3k.format_reward("<think>" + "</think>\\boxed{" * 50_000) == 0.0  # in linear time


def test_no_code_reaches_sympy(tmp_path: Path) -> None:
    """A string of octal escapes has no letters; sympy would evaluate what it spells."""
    code = f"open({str(tmp_path / 'ran')!r},'w')"
    escapes = "".join(f"\\textbackslash{{}}{ord(character):03o}" for character in code)
    assert not geo3k.grade_answer(f"sqrt('{escapes}')", "4.5", timeout=60.0)
    assert not (tmp_path / "ran").exists()


def test_a_scorer_of_no_data_source_is_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    options = VerlRewardOptions(scorers={"mine": "math", "mnie": "gsm8k", "*": "math"})
    reward = VerlReward(options, make_build_context("verl", where="rewards[0]"))

    async def play() -> None:
        await reward.start()
        await reward.score(episode("\\boxed{18}", source="mine"))
        await reward.stop()

    asyncio.run(play())
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("rewards[0].options.scorers: no task had the data_source 'mnie'")


@pytest.mark.parametrize("options", [{"path": "a.py", "scorers": {"*": "math"}}, {"reward_kwargs": {"bonus": 1}}])
def test_tables_and_arguments_of_another_way_to_score_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="path"):
        VerlRewardOptions(**options)


def test_own_table_of_scorers() -> None:
    assert score(episode("\\boxed{18}", source="mine"), scorers={"mine": "math"}).value == 1.0
    assert score(episode("18", source=None), scorers={"*": "gsm8k"}, method="flexible").value == 1.0
    assert scorer_of("openai/gsm8k", {"*": "math"}) == "math"
    assert scorer_of("searchR1_nq") == "search_r1"
    assert scorer_of("unknown") is None


def test_what_nothing_can_score() -> None:
    with pytest.raises(RewardError, match="nothing scores the data_source 'mine'; known are openai/gsm8k") as caught:
        score(episode("x", source="mine"))
    assert "scorers" in str(caught.value.hint)
    for answer in (None, float("nan")):
        with pytest.raises(RewardError, match="no reward_model.ground_truth"):
            score(episode("x", answer=answer))


def test_a_scorer_of_another_plugin_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLRL_DISABLE", "search,sandbox-fusion")
    load_registry.cache_clear()
    try:
        with pytest.raises(RewardError, match="reward 'search/search_r1' of the plugin 'search'") as caught:
            score(episode("<answer>x</answer>", source="searchR1_nq", answer={"target": ["x"]}))
        assert "pip install toolrl-plugin-search" in str(caught.value.hint)
        with pytest.raises(RewardError, match="sandbox-fusion"):
            score(episode("x", source="taco"), sandbox_fusion={"url": "http://x"})
    finally:
        load_registry.cache_clear()
    with pytest.raises(RewardError, match="the option `sandbox_fusion` names none"):
        score(episode("x", source="apps"))


SANDBOX = {"sandbox_fusion": {"url": "http://x"}}
CASES = '{"inputs": ["1"], "outputs": ["2"]}'


@pytest.mark.parametrize(
    ("source", "answer", "options", "problem"),
    [
        ("openai/gsm8k", "18", {}, None),
        ("numina_aops", "18", {}, "nothing scores"),
        ("numina_aops", "18", {"scorers": {"*": "math"}}, None),
        ("openai/gsm8k", None, {}, "ground_truth"),
        ("taco", CASES, {}, "the option `sandbox_fusion` names none"),
        ("taco", CASES, SANDBOX, None),
        ("taco", "18", SANDBOX, "test cases"),
        ("searchR1_nq", {"target": ["x"]}, {}, None),
        ("searchR1_nq", {"target": []}, {}, "answer"),
    ],
)
def test_a_task_that_its_scorer_cannot_score_is_told_before_the_run(
    source: str, answer: Any, options: dict[str, Any], problem: str | None
) -> None:
    for name in ("sandbox_fusion", "search"):
        pytest.importorskip(f"toolrl_plugin_{name}")
    found = VerlRewardOptions(**options)
    with pytest.raises(ToolrlError, match=problem) if problem else nullcontext():
        found.check_task(episode("x", source=source, answer=answer).task)


TOOL_TURN = {0: [CallRecord(ToolCall("t", {}), ToolResult("#### 18", reward=0.5))]}


def test_what_a_tool_says_is_not_scored() -> None:
    assert score(episode("I ask.", "I don't know.", calls=TOOL_TURN)).value == 0.0


def test_the_whole_response_can_be_scored_as_verl_does() -> None:
    one = episode("I ask.", "I don't know.", calls=TOOL_TURN)
    options = VerlRewardOptions(solution="response")
    context = make_build_context("verl", tokenizer=_FakeTokenizer())
    assert asyncio.run(VerlReward(options, context).score(one)).value == 1.0
    with pytest.raises(ConfigError, match="needs the model's tokenizer"):
        VerlReward(options, make_build_context("verl"))


class _FakeTokenizer:
    """Decodes an episode's response by the fake chat format."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return FakeChatFormat().decode(ids).text


FUNCTION = """
SEEN = []

def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    SEEN.append((data_source, solution_str, ground_truth, extra_info))
    return {"score": float(ground_truth in solution_str) + bonus, "acc": ground_truth in solution_str, "pred": "text",
            "tools": sum(extra_info["tool_rewards"])}

async def in_a_coroutine(data_source, solution_str, ground_truth, extra_info=None):
    return 0.5, "a remark"

def batch(data_sources, solution_strs, ground_truths, extra_infos, **kwargs):
    return [len(text) for text in solution_strs]

def nothing(**kwargs):
    return None

def changes(data_source, solution_str, ground_truth, extra_info):
    extra_info["list"].append(1)
    return len(extra_info["list"])

def seen(**kwargs):
    info = kwargs["extra_info"]
    return {"score": 1, "turns": info["num_turns"], "own": info["rollout_reward_scores"]["t"], "index": info["index"]}
"""


@pytest.fixture
def function_file(tmp_path: Path) -> str:
    (tmp_path / "my_reward.py").write_text(FUNCTION)
    return str(tmp_path / "my_reward.py")


def test_a_function_of_ones_own(function_file: str) -> None:
    calls = {
        0: [
            CallRecord(ToolCall("t", {}), ToolResult("x", metrics={"tool_reward": -0.05})),
            CallRecord(ToolCall("t", {}), ToolResult("x", reward=0.25, metrics={"tool_reward": 0.25})),
            CallRecord(ToolCall("u", {}), ToolResult("x", reward=1.0)),
            CallRecord(ToolCall("u", {}), ToolResult("x")),
        ]
    }
    result = score(episode("a", "it is 18", calls=calls), path=function_file, reward_kwargs={"bonus": 0.5})
    assert result.value == 1.5
    assert result.metrics == {"acc": 1.0, "correct": 1.0, "tools": pytest.approx(1.2)}


def test_extra_fields_of_the_tools_reach_a_function(function_file: str) -> None:
    notes = {"extra_fields": {"list": [1, 2], "index": 9}, "rollout_reward_scores": {"t": 0.5}, "x": 1}
    one = episode("a", "b", notes=notes, extra_info={"index": 7})
    # What a tool noted goes over the row's own value, as in verl.
    metrics = score(one, path=function_file, name="seen").metrics
    assert (metrics["index"], metrics["own"]) == (9.0, 0.5)
    assert score(one, path=function_file, name="changes").value == 3.0
    assert one.notes["extra_fields"]["list"] == [1, 2]


@pytest.mark.parametrize(("name", "value"), [("in_a_coroutine", 0.5), ("batch", 3.0)])
def test_other_forms_of_functions(name: str, value: float, function_file: str) -> None:
    result = score(episode("abc"), path=function_file, name=name)
    assert (result.value, result.metrics) == (value, {"correct": 0.5} if value == 0.5 else {})


def test_what_reaches_a_function(function_file: str) -> None:
    one = episode(
        "a", "b", calls=TOOL_TURN, extra_info={"index": 7}, rewards=[RewardEntry(None, "tool:t", 0.75, weight=0.0)]
    )
    metrics = score(one, path=function_file, name="seen").metrics
    assert metrics == {"turns": 4.0, "own": 0.75, "index": 7.0, "correct": 1.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "none.py"}, "there is no file 'none.py'"),
        ({"path": "{file}", "name": "missing"}, "has no function 'missing'"),
        ({"path": "{file}", "name": "SEEN"}, "has no function 'SEEN'"),
    ],
)
def test_a_function_that_is_not_there(options: dict[str, str], message: str, function_file: str) -> None:
    given = {key: value.format(file=function_file) for key, value in options.items()}
    with pytest.raises(ConfigError, match=message):
        score(episode("a"), **given)
    with pytest.raises(RewardError, match=r"nothing\(\) returned None, expected a number"):
        score(episode("a"), path=function_file, name="nothing")


def test_the_scorers_that_tools_import() -> None:
    assert gsm8k.extract_solution("7 or 8.5", method="flexible") == "8.5"
    assert gsm8k.compute_score("7 or 1,000", "1000", method="flexible") == 0.0
    assert gsm8k.compute_score("#### 4", "5", format_score=0.1) == 0.1
    assert gsm8k.compute_score("four", "4", format_score=0.1) == 0.0
    with pytest.raises(ValueError, match="expected 'strict' or 'flexible'"):
        gsm8k.extract_solution("x", method="lax")  # type: ignore[arg-type]
    assert geo3k.compute_score("4", "4", use_boxed=False, format_score=0.0) == 1.0
    assert math_dapo.compute_score("Answer: 4", "4", strict_box_verify=True)["score"] == -1.0


def test_the_default_function_is_a_plain_one() -> None:
    assert default_compute_score(GSM, "#### 4", "4", extra_info={}, sandbox_fusion_url=None) == 1.0
    assert default_compute_score(DAPO, "Answer: 4", "4") == {"score": 1.0, "acc": True, "pred": "4"}
    assert default_compute_score(GEO, "\\boxed{4}", "4") == 0.9
    with pytest.raises(NotImplementedError, match="'elsewhere'"):
        default_compute_score("elsewhere", "x", "4")


@given(
    st.text("0123456789.,-{}\\$#=% answer cm frac sqrt boxed", max_size=60) | st.text(max_size=400),
    st.one_of(st.text(max_size=20), st.integers(), st.none()),
)
def test_any_text_has_a_score(text: str, truth: Any) -> None:
    for scorer in (gsm8k, math_reward):
        assert scorer.compute_score(text, truth) in (0.0, 1.0)
    assert math_dapo.compute_score(text, truth)["score"] in (-1.0, 1.0)
    assert 0.0 <= geo3k.format_reward(text) <= 1.0
