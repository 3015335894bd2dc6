"""Metrics of episodes: what a step's or an evaluation's groups come to, under the names that reports know.

Means are over the episodes that ended without a failure; `errors/*` count the others. In evaluations a failed episode
is also a wrong answer in accuracy, avg@k and pass@k, unless no reward judges its environment. What no episode gives
(accuracy without a judge, the success of calls where none was made) is left out instead of being 0.

    reward/mean, reward/std       of Episode.reward; the deviation is the population's
    reward/<source>/mean          of what one source gave an episode, unweighted, over the episodes it gave something
                                  to; <source> is a reward function's name, `step:<tool>`, `tool:<tool>`, `call_cost`
    reward/<name>/<key>           of a reward function's own metrics; one whose key is `mean`, or begins with `own/`,
                                  has `own/` before it
    tool/<name>/<key>             of a tool's own metrics, summed in an episode; of its policy `policy/retries`,
                                  `policy/queue_seconds` and `policy/cache_hits`, if the option is on; one of the tool
                                  that begins with `policy/` or `own/` has `own/` before it
    accuracy                      of Episode.correct, over the episodes that were judged
    environment/reward/<name>     reward/mean of one environment's episodes; this and the next three where there are
                                  episodes of several
    environment/accuracy/<name>   accuracy of its episodes
    environment/turns/<name>      turns/mean of its episodes
    environment/errors/<name>     share of its episodes that failed
    dataset/<key>/<name>          the same four of one data set's episodes, where there are episodes of several
    turns/mean, calls/mean        in an episode; calls/mean is the calls per answer
    calls/success                 share of calls that were answered without an error
    calls/error/<kind>            share of calls that were answered with this error: ToolResult.error
    stop/<reason>                 share of episodes that ended by it
    truncated                     share that ended by max_tokens, context_full or timeout
    tokens/sampled, tokens/prompt in an episode; the prompt is that of `Episode.main`
    trajectories/mean             in an episode; this and the next two where an episode has several
    tokens/restated               in an episode: prompt tokens that an earlier trajectory of it holds
    model/extended                questions of a harness or a sub-agent, in an episode, that extended a trajectory;
                                  this and the next two where an episode has any
    model/forked                  that went on from a turn behind which another one stands already
    model/opened                  that opened a trajectory: the first, and after each change of what went before
    role/reward/<name>            what a role's trajectories are credited with, of several roles
    usage/<key>                   sum over all episodes, failed ones too, of what an API counted: `requests`, `retries`,
                                  `prompt_tokens`, `cached_tokens`, `completion_tokens`, `reasoning_tokens`, `cost`
    time/generate, time/tools     seconds that an episode waited for them; episodes overlap each other
    time/longest                  seconds of the longest episode
    errors/rate, errors/count     share of all episodes that failed, and their number
    <metric>/stderr               of an evaluation: the standard error, clustered by task, of accuracy, reward/mean,
                                  avg@k, pass@k, and accuracy and reward of an environment or a data set; of two tasks
                                  or more
    <metric>/interval/<end>       `low` and `high`, the ends of the 95 % confidence interval of those of them that are
                                  shares: accuracy, avg@k, pass@k, and accuracy of an environment or a data set
    ablation/<name>/<key>         `toolrl eval --ablate` under the condition `none`, `shuffled` or `failing`: accuracy,
                                  reward/mean, calls/mean, usage/cost
    ablation/<name>/benefit/<key> accuracy or reward/mean with the tools, minus that; under it `stderr`,
                                  paired by task, and `low` and `high`, its 95 % confidence interval
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean

from toolrl.runs.records import restated
from toolrl.types import Episode, Group

Clusters = Sequence[Sequence[float]]
"""The values of each task's episodes; a task may have none."""
Interval = tuple[float, float, float]
"""A value with the ends of its confidence interval."""
_Z95 = 1.959963984540054
_TRUNCATED = ("max_tokens", "context_full", "timeout")


def episode_metrics(groups: Sequence[Group], *, evaluation: bool = False) -> dict[str, float]:
    """All of the above. Empty where there are no episodes."""
    everyone = [episode for group in groups for episode in group.episodes]
    episodes = [episode for episode in everyone if episode.failure is None]
    if not everyone:
        return {}
    failed = len(everyone) - len(episodes)
    metrics = {"errors/rate": failed / len(everyone), "errors/count": float(failed)}
    verdicts = [verdict for of_group in _verdicts(groups, evaluation) for verdict in of_group]
    if verdicts:
        metrics["accuracy"] = _mean([value for _, value in verdicts])
    usage = Counter[str]()
    for turn in (turn for episode in everyone for turn in episode.turns):
        usage.update(turn.usage)
    metrics |= {f"usage/{key}": float(amount) for key, amount in usage.items()}
    if not episodes:
        return metrics
    count = len(episodes)
    metrics |= _reward_metrics(episodes) | _part_metrics(everyone, verdicts)
    calls = [record for episode in episodes for record in episode.calls]
    metrics["turns/mean"] = sum(len(episode.turns) for episode in episodes) / count
    metrics["calls/mean"] = len(calls) / count
    if calls:
        errors = Counter(record.result.error for record in calls if record.result.error is not None)
        metrics["calls/success"] = 1.0 - errors.total() / len(calls)
        metrics |= {f"calls/error/{kind}": number / len(calls) for kind, number in sorted(errors.items())}
    reasons = Counter(episode.stop_reason for episode in episodes)
    metrics |= {f"stop/{reason}": number / count for reason, number in sorted(reasons.items())}
    metrics["truncated"] = sum(number for reason, number in reasons.items() if reason in _TRUNCATED) / count
    metrics["tokens/sampled"] = sum(episode.sampled_tokens for episode in episodes) / count
    metrics["time/generate"] = sum(turn.generate_seconds for episode in episodes for turn in episode.turns) / count
    metrics["time/tools"] = sum(turn.tool_seconds for episode in episodes for turn in episode.turns) / count
    metrics["time/longest"] = max(episode.seconds for episode in episodes)
    metrics["tokens/prompt"] = sum(episode.main.prompt_length for episode in episodes) / count
    return metrics | _trajectory_metrics(episodes)


def _trajectory_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Nothing where each episode is one conversation."""
    count, parts = len(episodes), [episode.trajectories for episode in episodes]
    if all(len(of) == 1 for of in parts):
        return {}
    restating = sum(length for of in parts for _, length in restated(of))
    metrics = {"trajectories/mean": sum(map(len, parts)) / count, "tokens/restated": restating / count}
    roles = sorted({it.role for of in parts for it in of})
    for role in roles if len(roles) > 1 else ():
        own = [episode.reward_of(role) for episode in episodes if any(it.role == role for it in episode.trajectories)]
        metrics[f"role/reward/{role}"] = _mean(own)
    return metrics


def _reward_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    rewards = [episode.reward for episode in episodes]
    mean = math.fsum(rewards) / len(rewards)
    variance = math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards)
    gathered: dict[str, list[float]] = defaultdict(list)
    own: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        given: dict[str, float] = defaultdict(float)
        for entry in episode.rewards:
            given[entry.source] += entry.value
        for source, value in given.items():
            gathered[f"reward/{source.removeprefix('reward:')}/mean"].append(value)
        for key, value in episode.metrics.items():
            if key.startswith(("tool/", "model/")):
                gathered[key].append(value)
            elif key != "correct":
                own[key].append(value)
    names = _own_names(own, {source.removeprefix("reward:") for it in episodes for source in _sources(it)})
    gathered |= {name: own[key] for key, name in names.items()}
    metrics = {"reward/mean": mean, "reward/std": math.sqrt(variance)}
    return metrics | {name: _mean(gathered[name]) for name in sorted(gathered)}


def _own_names(keys: Iterable[str], sources: Collection[str]) -> dict[str, str]:
    """The names of rewards' own metrics, `<name>/<key>`. One that would have the name of a source's mean has `own/`
    before its key, as has one whose key begins with `own/`: so no two can meet."""
    taken = {"reward/mean", "reward/std", "reward/mean/stderr", *(f"reward/{source}/mean" for source in sources)}
    names = {}
    for key in keys:
        owner = max((it for it in sources if key.startswith(f"{it}/")), key=len, default=key.partition("/")[0])
        rest = key.removeprefix(f"{owner}/")
        meets = f"reward/{key}" in taken or rest == "mean" or rest.startswith("own/")
        names[key] = f"reward/{owner}/own/{rest}" if meets else f"reward/{key}"
    return names


def _sources(episode: Episode) -> set[str]:
    return {entry.source for entry in episode.rewards}


def _verdicts(groups: Iterable[Group], evaluation: bool) -> list[list[tuple[Episode, float]]]:
    """By group: each episode that counts in accuracies, and how correct it is."""
    groups = list(groups)
    scored = [episode for group in groups for episode in group.scored]
    judged = {episode.environment for episode in scored if episode.correct is not None}
    unjudged = {episode.environment for episode in scored} - judged

    def verdict(episode: Episode) -> float | None:
        if episode.failure is None:
            return episode.correct
        return 0.0 if evaluation and episode.environment not in unjudged else None

    found = [[(episode, verdict(episode)) for episode in group.episodes] for group in groups]
    return [[(episode, value) for episode, value in of_group if value is not None] for of_group in found]


_PARTS: Mapping[str, Callable[[Episode], str | None]] = {
    "environment": lambda episode: episode.environment,
    "dataset": lambda episode: episode.task.dataset,
}
"""By prefix of metrics: the name of the part that an episode belongs to."""


def _parts(episodes: Iterable[Episode]) -> Iterator[tuple[str, str]]:
    """The prefix and the name of each part that has metrics of its own: of a kind of which there are several."""
    episodes = list(episodes)
    for prefix, part_of in _PARTS.items():
        names = sorted({name for episode in episodes if (name := part_of(episode)) is not None})
        yield from ((prefix, name) for name in names if len(names) > 1)


def _part_metrics(everyone: Sequence[Episode], verdicts: Sequence[tuple[Episode, float]]) -> dict[str, float]:
    """Metrics of each environment's and each data set's episodes; none where there is only one of them."""
    metrics: dict[str, float] = {}
    for prefix, name in _parts(everyone):
        own = [episode for episode in everyone if _PARTS[prefix](episode) == name]
        scored = [episode for episode in own if episode.failure is None]
        judged = [value for episode, value in verdicts if _PARTS[prefix](episode) == name]
        metrics[f"{prefix}/errors/{name}"] = 1.0 - len(scored) / len(own)
        if scored:
            metrics[f"{prefix}/reward/{name}"] = _mean([episode.reward for episode in scored])
            metrics[f"{prefix}/turns/{name}"] = _mean([len(episode.turns) for episode in scored])
        if judged:
            metrics[f"{prefix}/accuracy/{name}"] = _mean(judged)
    return metrics


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def pass_metrics(groups: Iterable[Group], k: int) -> dict[str, float]:
    """`avg@k` and `pass@k` over the tasks: the mean over tasks of the share of correct episodes, and of the chance that
    one of k is correct.

    Failed episodes are wrong ones; of the others the judged ones count. A task with fewer than k says nothing of pass@k
    and is left out there; both are left out where no task has any.
    """
    return {name: _mean(values) for name, values in _pass_values(groups, k).items() if values}


def _pass_values(groups: Iterable[Group], k: int) -> dict[str, list[float]]:
    verdicts = [of_group for of_group in _verdicts(groups, evaluation=True) if of_group]
    counts = [(len(of_group), sum(value >= 0.5 for _, value in of_group)) for of_group in verdicts]
    shares = [correct / judged for judged, correct in counts]
    return {f"avg@{k}": shares, f"pass@{k}": [pass_at_k(*count, k) for count in counts if count[0] >= k]}


def values_by_task(groups: Sequence[Group]) -> dict[str, list[list[float]]]:
    """By metric of an evaluation, and by task: the values of episodes whose mean it is."""
    rewards = [[(episode, episode.reward) for episode in group.scored] for group in groups]
    parts = list(_parts(episode for group in groups for episode in group.episodes))
    values = {}
    for metric, tasks in (("accuracy", _verdicts(groups, evaluation=True)), ("reward/mean", rewards)):
        values[metric] = [[value for _, value in task] for task in tasks]
        for prefix, name in parts:
            own = f"{prefix}/{metric.removesuffix('/mean')}/{name}"
            values[own] = [[value for it, value in task if _PARTS[prefix](it) == name] for task in tasks]
    return values


def error_metrics(groups: Sequence[Group], k: int) -> dict[str, float]:
    """Standard errors of an evaluation's metrics, and intervals of shares. None of a mean over fewer than two tasks."""
    of_tasks = {name: [[value] for value in values] for name, values in _pass_values(groups, k).items()}
    found = {**values_by_task(groups), **of_tasks}
    metrics = {}
    for name, values in sorted(found.items()):
        if (error := standard_error(values)) is not None:
            metrics[f"{name}/stderr"] = error
        if is_share(name) and (interval := share_interval(values)) is not None:
            metrics |= {f"{name}/interval/low": interval[0], f"{name}/interval/high": interval[1]}
    return metrics


def is_share(name: str) -> bool:
    """Whether a metric with an error is a share, between 0 and 1."""
    return name == "accuracy" or name.startswith(("avg@", "pass@", "environment/accuracy/", "dataset/accuracy/"))


def pass_at_k(episodes: int, correct: int, k: int) -> float:
    """The chance that at least one of k episodes is correct, where `correct` of `episodes` were: the unbiased estimate
    1 − C(episodes − correct, k) / C(episodes, k) of Chen et al., arXiv 2107.03374, section 2.1."""
    return 1.0 - math.comb(episodes - correct, k) / math.comb(episodes, k)


# Standard errors of means over episodes: tasks are a random sample, episodes of one task aren't independent.


def standard_error(values: Clusters, baseline: Clusters | None = None) -> float | None:
    """Of the mean of all values, clustered by task; with a `baseline` of the same tasks in their order, of the
    difference of the two means, paired by task. None where fewer than two tasks have values.

    sqrt(C / (C − 1) · Σ_c (Σ_i (x_ci − x̄) / n)²), of C tasks with n values in all: Miller, arXiv 2411.00640, section
    2.2, with the correction for few clusters. With one value a task it is the standard deviation over sqrt(n).
    """
    parts = zip(_deviations(values), _deviations(baseline or [()] * len(values)), strict=True)
    tasks = sum(bool(own or other) for own, other in zip(values, baseline or values, strict=True))
    return None if tasks < 2 else math.sqrt(tasks / (tasks - 1) * math.fsum((own - other) ** 2 for own, other in parts))


def paired_difference(values: Clusters, baseline: Clusters, *, shares: bool = False) -> dict[str, float] | None:
    """`value`, the difference of two means of the same tasks, its `stderr`, and `low` and `high`, the ends of its 95 %
    confidence interval; of `shares`, Newcombe's. None if fewer than two tasks have values."""
    error = standard_error(values, baseline)
    if error is None or not any(values) or not any(baseline):
        return None
    value = fmean(chain.from_iterable(values)) - fmean(chain.from_iterable(baseline))
    low, high = value - _Z95 * error, value + _Z95 * error
    own, other = (share_interval(it) if shares else None for it in (values, baseline))
    if own is not None and other is not None:
        means = [fmean(chain.from_iterable(it)) for it in (values, baseline)]
        low, high = newcombe((means[0], *own), (means[1], *other), _correlation(values, baseline))
    return {"value": value, "stderr": error, "low": low, "high": high}


# Confidence intervals of shares, which never leave [0, 1], and of their differences.


def wilson(share: float, count: float) -> tuple[float, float]:
    """Compute the 95 % score interval of a share of `count` independent observations: Wilson, JASA 22 (1927), 209-212.

    (p + z²/2n ± z √(p (1 − p)/n + z²/4n²)) / (1 + z²/n)
    """
    square = _Z95**2 / count
    middle = (share + square / 2) / (1 + square)
    half = math.sqrt(share * (1 - share) * square + square**2 / 4) / (1 + square)
    return max(0.0, min(middle - half, share)), min(1.0, max(middle + half, share))


def share_interval(values: Clusters) -> tuple[float, float] | None:
    """Compute Wilson's interval of the mean of values in [0, 1], clustered by task. None for fewer than two tasks.

    The count is the effective one: values over the design effect, the clustered variance of the mean over that of
    independent values (Kish, Survey Sampling, 1965; compared for Wilson's interval by Franco et al., J. Survey Stat.
    Methodol. 7 (2019), 334-364). It is at most the number of values. If all values are 0, or all are 1, the design
    effect can't be estimated, and the number of tasks is the count. With one value a task it is Wilson's own.
    """
    every = list(chain.from_iterable(values))
    tasks, error = sum(map(bool, values)), standard_error(values)
    if error is None or not all(0.0 <= value <= 1.0 for value in every):
        return None
    share = fmean(every)
    clustered = error**2 * (tasks - 1) / tasks
    count = share * (1 - share) / clustered if clustered else math.inf
    return wilson(share, tasks if share in (0.0, 1.0) else min(count, len(every)))


def newcombe(own: Interval, other: Interval, correlation: float) -> tuple[float, float]:
    """Compute the 95 % interval of the difference of two shares from their own intervals, each (share, low, high), and
    the correlation of the two shares: Newcombe, Statistics in Medicine 17 (1998), 2635-2650, method 8; with correlation
    0 his method 10 for independent samples, 17, 873-890."""

    def distance(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * correlation * a * b + b * b))

    (p, low, high), (q, floor, ceiling) = own, other
    return p - q - distance(p - low, ceiling - q), p - q + distance(high - p, q - floor)


def _correlation(values: Clusters, baseline: Clusters) -> float:
    """Estimate the correlation of two means of the same tasks; 0 if one of them doesn't vary."""
    own, other = _deviations(values), _deviations(baseline)
    scale = math.sqrt(math.fsum(it * it for it in own) * math.fsum(it * it for it in other))
    return max(-1.0, min(1.0, math.fsum(a * b for a, b in zip(own, other, strict=True)) / scale)) if scale else 0.0


def _deviations(values: Clusters) -> list[float]:
    """What each task adds to the error of the mean."""
    count = sum(map(len, values)) or 1
    mean = math.fsum(value for task in values for value in task) / count
    return [math.fsum(value - mean for value in task) / count for task in values]
