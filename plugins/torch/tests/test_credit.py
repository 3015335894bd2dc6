"""Which tokens of a step get which advantage, against values worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from toolrl.errors import RewardError
from toolrl.types import Group, RewardEntry, Segment, Task, Turn
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.objective.credit import Credit, credit, is_flat, token_advantages

DR_GRPO = AlgorithmConfig(preset="dr_grpo")
THREE_TURNS = (0, 1, 0, 1, 0, 1)


def _groups(make_episode: Any, *rewards: tuple[float | None, ...]) -> list[Group]:
    return [
        Group(
            str(number),
            Task(str(number), ()),
            tuple(
                make_episode(reward=reward or 0.0, failed=reward is None, index=index, group=str(number))
                for index, reward in enumerate(of_group)
            ),
        )
        for number, of_group in enumerate(rewards)
    ]


def test_tokens_get_the_advantage_of_their_episode_or_turn(make_episode: Any) -> None:
    episode = make_episode((0, 1, 1, 0, 1, 0))
    assert token_advantages(episode, 0.5) == [0.0, 0.5, 0.5, 0.0, 0.5, 0.0]
    assert token_advantages(episode, {0: 1.0, 1: -2.0}) == [0.0, 1.0, 1.0, 0.0, -2.0, 0.0]
    assert token_advantages(episode, {0: [1.0, 3.0], 1: -2.0}) == [0.0, 1.0, 3.0, 0.0, -2.0, 0.0]
    with pytest.raises(KeyError):
        token_advantages(episode, {0: 1.0})
    segments = (Segment("model", "a", (1, 3)), Segment("tool", "b", (3, 4)), Segment("model", "c", (4, 5)))
    episode = make_episode((0, 1, 1, 0, 1), turns=(Turn(0, segments, (), (), "stop"),))
    assert token_advantages(episode, {0: 3.0}) == [0.0, 3.0, 3.0, 0.0, 3.0], "a tool's text inside of a turn gets none"


def _three_turns(
    make_episode: Any, outcomes: Sequence[float], turns: Sequence[Mapping[int, float]], source: str, weight: float
) -> Group:
    """Episodes of three turns: what each was given as a whole, and by `source` for its turns."""
    episodes = [
        make_episode(
            THREE_TURNS,
            index=index,
            rewards=(
                RewardEntry(None, "reward:exact", outcome),
                *(RewardEntry(turn, source, value, weight) for turn, value in of_turns.items()),
            ),
        )
        for index, (outcome, of_turns) in enumerate(zip(outcomes, turns, strict=True))
    ]
    return Group("g", Task("g", ()), tuple(episodes))


def _stepped(make_episode: Any, *episodes: tuple[float, dict[int, float]]) -> Group:
    """What each episode was given as a whole, and for its turns."""
    outcomes, turns = zip(*episodes, strict=True)
    halves = [{turn: value / 2 for turn, value in steps.items()} for steps in turns]
    return _three_turns(make_episode, outcomes, halves, "step:tool", 2.0)


@pytest.mark.parametrize(
    ("outcome", "discount", "advantages"),
    [
        # Outcomes 1 and 0: ±0.5. Rewards of turns 1, 0 and 2, whose mean is 1: 0, −1 and 1.
        (1.0, 1.0, [{0: 0.5 + 0.0 - 1.0, 1: 0.5 - 1.0, 2: 0.5 - 1.0}, {0: -0.5 + 1.0, 1: -0.5 + 1.0, 2: -0.5}]),
        (0.0, 0.5, [{0: -0.25, 1: -0.5, 2: -1.0}, {0: 0.5, 1: 1.0, 2: 0.0}]),
    ],
)
def test_a_turn_earns_what_it_and_later_turns_were_given(
    make_episode: Any, outcome: float, discount: float, advantages: list[dict[int, float]]
) -> None:
    group = _stepped(make_episode, (outcome, {0: 1.0, 2: 0.0}), (0.0, {1: 2.0}))
    settings = AlgorithmConfig(preset="dr_grpo", credit="turn", discount=discount)
    assert credit([group], settings).advantages == advantages


def _costly(make_episode: Any, *calls: Sequence[int]) -> Group:
    """Episodes that are all right, with so many calls in each of the turns that call, at 0.2 each."""
    costs = [{turn: -float(number) for turn, number in enumerate(counts)} for counts in calls]
    return _three_turns(make_episode, [1.0] * len(calls), costs, "call_cost", 0.2)


def test_calls_cost_an_episode_that_makes_them_more_than_one_that_makes_none(make_episode: Any) -> None:
    """Compared among the turns that call, equal costs would be none, and one call better than the mean of one and
    three: better than no call. Costs 0, 0.2 and 0.4, whose mean is 0.2; then 0, 0.2 and 0.8, whose mean is 1/3."""
    turn = AlgorithmConfig(preset="dr_grpo", credit="turn", discount=0.5)
    group = _costly(make_episode, (), (1,), (1, 1))
    told = [[pytest.approx(value)] * 3 for value in (0.2, 0.0, -0.2)]
    assert [list(said.values()) for said in credit([group], turn).advantages] == told
    assert not is_flat(group, turn)
    group = _costly(make_episode, (), (1,), (3, 1))
    told = [[pytest.approx(value)] * 3 for value in (1 / 3, 1 / 3 - 0.2, 1 / 3 - 0.8)]
    assert [list(said.values()) for said in credit([group], turn).advantages] == told


def test_rewards_of_turns_that_differ_in_their_last_bit_are_equal(make_episode: Any) -> None:
    turn = AlgorithmConfig(preset="dapo", credit="turn", dynamic_sampling=True)
    group = _stepped(make_episode, (1.0, {0: 0.1 + 0.2}), (1.0, {1: 0.3}))
    assert is_flat(group, turn)
    assert credit([group, group], turn).metrics["groups/flat"] == 1.0
    assert not is_flat(_stepped(make_episode, (1.0, {0: 0.1}), (1.0, {1: 0.3})), turn)


@pytest.mark.parametrize(
    ("settings", "flat"),
    [({}, True), ({"credit": "turn"}, False), ({"preset": "ppo", "dynamic_sampling": True}, False)],
)
def test_equal_sums_of_different_turns_teach_by_turn(make_episode: Any, settings: dict[str, Any], flat: bool) -> None:
    """What is set aside, and what `drop_flat_groups` drops, is what would teach nothing."""
    group = _stepped(make_episode, (0.0, {0: 1.0}), (1.0, {}))
    algorithm = AlgorithmConfig(**{"preset": "dr_grpo", **settings})
    dropping = AlgorithmConfig(**{"preset": "dr_grpo", "drop_flat_groups": True, **settings})
    estimator = Said([[dict.fromkeys(range(3), 1.0)] * 2])
    assert is_flat(group, algorithm) == flat
    assert credit([group], algorithm, estimator).metrics["groups/flat"] == flat
    assert len(credit([group], dropping, estimator).episodes) == (0 if flat else 2)


@pytest.mark.parametrize("judged", [True, False])
@pytest.mark.parametrize("filter_metric", ["correct", "reward"])
def test_answers_that_differ_in_length_alone_are_left_out(make_episode: Any, judged: bool, filter_metric: str) -> None:
    """Four right answers, one of which is penalised for its length."""
    settings = AlgorithmConfig(
        preset="dapo", filter_metric=filter_metric, overlong={"tokens": 80, "buffer": 30}, dynamic_sampling=True
    )
    metrics = {"correct": 1.0} if judged else {}
    episodes = [make_episode((0, *[1] * length), reward=1.0, metrics=metrics) for length in (10, 60, 80, 20)]
    group = Group("g", Task("g", ()), tuple(episodes))
    assert is_flat(group, settings)
    credited = credit([group, *_groups(make_episode, (1.0, 0.0))], settings)
    assert len(credited.episodes) == 2
    assert credited.metrics["groups/flat"] == 1 / 2
    unfiltered = credit([group], AlgorithmConfig(overlong={"tokens": 80, "buffer": 30}))
    assert unfiltered.metrics["groups/flat"] == 0.0, "grpo filters nothing"


@pytest.mark.parametrize(
    ("filter_metric", "answers", "flat"),
    [
        # Of each episode: whether it is correct, None where no reward judged it, and its reward.
        ("correct", [(1.0, 1.0), (1.0, 0.8)], True),
        ("correct", [(0.0, 0.0), (0.0, 0.1)], True),
        ("correct", [(1.0, 1.0), (0.0, 0.1)], False),
        ("correct", [(1.0, 1.0), (0.0, 1.0)], True),
        ("correct", [(1.0, 1.0), (None, 0.8)], False),
        ("correct", [(None, 1.0), (None, 0.8)], False),
        ("correct", [(None, 1.0), (None, 1.0)], True),
        ("reward", [(1.0, 1.0), (1.0, 0.8)], False),
        ("reward", [(1.0, 1.0), (0.0, 1.0)], True),
    ],
)
def test_the_filter_looks_at_correctness_where_it_is_judged(
    make_episode: Any, filter_metric: str, answers: list[tuple[float | None, float]], flat: bool
) -> None:
    episodes = [
        make_episode(reward=reward, metrics={} if correct is None else {"correct": correct})
        for correct, reward in answers
    ]
    group = Group("g", Task("g", ()), (*episodes, make_episode(failed=True, reward=9.0)))
    for credit_of in ("episode", "turn"):
        settings = AlgorithmConfig(preset="dapo", filter_metric=filter_metric, credit=credit_of)
        assert is_flat(group, settings) == flat
        assert (credit([group], settings).episodes == []) == flat


class Said:
    """An estimator that says what it is told to."""

    def __init__(self, said: Sequence[Sequence[Credit]]) -> None:
        self.said = said

    def advantages(self, groups: Sequence[Group]) -> Sequence[Sequence[Credit]]:
        return self.said


def test_an_estimator_stands_for_the_built_in_ones(make_episode: Any) -> None:
    groups = _groups(make_episode, (1.0, None, 0.0), (2.0,))
    credited = credit(groups, DR_GRPO, Said([[0.25, math.nan, {0: 3.0}], [-1.0]]))
    assert credited.advantages == [0.25, {0: 3.0}, -1.0], "what is said of a failed episode isn't used"


@pytest.mark.parametrize("said", [[[1.0, 2.0]], [[1.0], [1.0]]])
def test_an_estimator_that_leaves_episodes_out_is_refused(make_episode: Any, said: Any) -> None:
    with pytest.raises(RewardError, match=r"advantages for groups of \[2, 1\] episodes"):
        credit(_groups(make_episode, (1.0, 0.0), (2.0,)), DR_GRPO, Said(said))
