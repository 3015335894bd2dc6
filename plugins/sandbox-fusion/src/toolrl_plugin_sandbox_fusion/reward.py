"""The reward `sandbox_fusion`: the share of the task's test cases that the episode's program passes.

A case that the sandbox couldn't run is no mistake of the model. It counts as not passed beside cases that could be run,
and where none could, the episode fails instead of being trained on as a zero.
"""

from __future__ import annotations

from collections import Counter

from toolrl.errors import RewardError
from toolrl.protocols import BuildContext
from toolrl.types import Episode, Score
from toolrl_common.http_client import without_secrets
from toolrl_plugin_sandbox_fusion.cases import Cases, Status, read_cases
from toolrl_plugin_sandbox_fusion.client import SandboxClient
from toolrl_plugin_sandbox_fusion.judge import CaseJudge, CaseLimits
from toolrl_plugin_sandbox_fusion.options import SandboxRewardOptions
from toolrl_plugin_sandbox_fusion.solution import solution

CONTINUOUS_CASES = 10


class SandboxReward:
    """Scores programs."""

    def __init__(self, options: SandboxRewardOptions, context: BuildContext) -> None:
        self._options = options
        client = SandboxClient(
            options.sandbox_fusion_url, headers=options.headers, max_response_bytes=options.max_response_mb << 20
        )
        limits = CaseLimits(options.timeout, options.memory_limit_mb, options.patience)
        self._judge = CaseJudge(client, limits, options.max_concurrent)

    async def score(self, episode: Episode) -> Score:
        """The pass rate. Raises DataError for a task without test cases, RewardError where the sandbox ran none."""
        options = self._options
        cases = self._cases(episode)
        program = solution(episode.content_of(options.judge), options.language)
        if program is None:
            return Score(0.0, metrics={"correct": 0.0, "answered": 0.0})
        verdicts = await self._judge(cases, program, options.language)
        counts = Counter(verdict.status for verdict in verdicts)
        if counts[Status.API_ERROR] == len(verdicts):
            raise RewardError(
                f"the sandbox ran none of the {len(verdicts)} test cases of task {episode.task.id!r}: "
                f"{verdicts[0].fault:.500}",
                where=without_secrets(options.sandbox_fusion_url),
                hint="Look at the sandbox; `toolrl sandbox-fusion serve` starts a local one.",
            )
        shares = {status.name.lower(): counts[status] / len(verdicts) for status in Status}
        rate = shares.pop("passed")
        return Score(rate, metrics={"correct": float(rate == 1.0), "answered": 1.0, "pass_rate": rate, **shares})

    def _cases(self, episode: Episode) -> Cases:
        task, key = episode.task, self._options.cases
        where = f"task {task.id!r}"
        cases = read_cases(task.answer if key is None else task.extra.get(key), where, self._options.language)
        return cases.first(CONTINUOUS_CASES) if self._options.continuous else cases
