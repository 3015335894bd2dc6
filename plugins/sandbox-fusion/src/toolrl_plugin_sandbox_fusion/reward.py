"""The reward `sandbox_fusion`: the share of the task's test cases that the episode's program passes.

The program is the last fenced block of the language, else the first fenced block of any. Each case is a request to the
sandbox, many at once. A case that the sandbox couldn't run is no mistake of the model. It counts as not passed beside
cases that could be run, and where none could, the episode fails instead of being trained on as a zero.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial

from toolrl.errors import DataError, RewardError, ToolError
from toolrl.protocols import BuildContext
from toolrl.types import Episode, Score
from toolrl_common.http_client import patiently, without_secrets
from toolrl_plugin_sandbox_fusion.api import RunRequest, RunResponse, SandboxClient
from toolrl_plugin_sandbox_fusion.asserts import InvalidStatementsError, JudgeFailedError, Statements
from toolrl_plugin_sandbox_fusion.cases import ProgramCase, Status, verdict
from toolrl_plugin_sandbox_fusion.options import SandboxRewardOptions

CONTINUOUS_CASES = 10
Judged = tuple[Status, str]
"""The status of a case, and for an error of the sandbox its message."""
NOT_COMPILED: Judged = (Status.COMPILE_ERROR, "")


TAGS: dict[str, tuple[str, ...]] = {
    "cpp": ("cpp", "c++"),
    "nodejs": ("javascript", "js", "nodejs"),
    "typescript": ("typescript", "ts"),
    "csharp": ("csharp", "c#"),
    "bash": ("bash", "sh"),
    "rust": ("rust", "rs"),
}
"""How blocks of a language are marked, where not by its name."""


class SandboxReward:
    """Scores programs."""

    def __init__(self, options: SandboxRewardOptions, context: BuildContext) -> None:
        self._options = options
        url, headers = options.sandbox_fusion_url, options.headers
        self._client = SandboxClient(url, headers, max_response_mb=options.max_response_mb)
        self._places = asyncio.Semaphore(options.max_concurrent)
        self._statements = lru_cache(4096)(Statements)

    async def score(self, episode: Episode) -> Score:
        """The pass rate. Raises DataError for a task without test cases, RewardError where the sandbox ran none,
        ToolsetError where its address or key is wrong."""
        options = self._options
        cases = options.read_cases(episode.task)
        if options.continuous:
            cases = cases.first(CONTINUOUS_CASES)
        program = solution(episode.content_of(options.judge), options.language)
        if program is None:
            return Score(0.0, metrics={"correct": 0.0, "answered": 0.0})
        if cases.asserts:
            verdicts = await self._judged(cases.asserts, program, f"task {episode.task.id!r}")
        else:
            verdicts = await self._verdicts(
                [partial(self._verdict, cases.case(index, program)) for index in range(len(cases))]
            )
        counts = Counter(status for status, _ in verdicts)
        if counts[Status.API_ERROR] == len(verdicts):
            raise RewardError(
                f"the sandbox ran none of the {len(verdicts)} test cases of task {episode.task.id!r}: "
                f"{verdicts[0][1]:.500}",
                where=without_secrets(options.sandbox_fusion_url),
                hint="Look at the sandbox; `toolrl sandbox-fusion serve` starts a local one.",
            )
        shares = {status.name.lower(): counts[status] / len(verdicts) for status in Status}
        rate = shares.pop("passed")
        return Score(rate, metrics={"correct": float(rate == 1.0), "answered": 1.0, "pass_rate": rate, **shares})

    async def _judged(self, asserts: Sequence[str], program: str, where: str) -> list[Judged]:
        """The status of each assert, in order, as `_verdicts` has it. Raises DataError for an invalid one."""

        async def judge(index: int) -> Judged:
            try:
                return await self._statements(asserts[index]).judge(program, self._program)
            except InvalidStatementsError as error:
                raise DataError(
                    f"assert_case[{index}]: {error}",
                    where=where,
                    hint="The statements run apart from the program: call its functions with plain data, and compare "
                    "the results.",
                ) from error
            except (JudgeFailedError, ToolError) as error:
                return Status.API_ERROR, str(error)

        return await self._verdicts([partial(judge, index) for index in range(len(asserts))])

    async def _verdicts(self, cases: Sequence[Callable[[], Awaitable[Judged]]]) -> list[Judged]:
        """The status of each case, in order, and for a fault of the sandbox its words.

        As in verl, every case after the first compile error counts as one. The index decides which is first, not the
        order of answers; so later ones are dropped as soon as one doesn't compile.
        """
        verdicts = [NOT_COMPILED] * len(cases)
        tasks: list[asyncio.Task[None]] = []

        async def run(index: int) -> None:
            verdicts[index] = await cases[index]()
            if verdicts[index] == NOT_COMPILED:
                for later in tasks[index + 1 :]:
                    later.cancel()

        try:
            async with self._client, asyncio.TaskGroup() as group:
                tasks.extend(group.create_task(run(index)) for index in range(len(cases)))
        except ExceptionGroup as several:  # a wrong address is one for every case
            raise several.exceptions[0] from None
        compiled = verdicts.index(NOT_COMPILED) if NOT_COMPILED in verdicts else len(verdicts)
        return verdicts[:compiled] + [NOT_COMPILED] * (len(verdicts) - compiled)

    async def _verdict(self, case: ProgramCase) -> Judged:
        try:
            response = await self._program(case.code, case.stdin)
        except ToolError as error:
            return Status.API_ERROR, str(error)
        status = verdict(response, case)
        return status, (response.message or f"status {response.status}") if status is Status.API_ERROR else ""

    async def _program(self, code: str, stdin: str | None) -> RunResponse:
        options = self._options
        seconds = options.timeout
        request = RunRequest(code, options.language, stdin, seconds, seconds, options.memory_limit_mb)
        async with self._places:  # kept while the sandbox is busy: more requests beside it wouldn't help
            return await patiently(lambda: self._client.run(request), options.patience)


def solution(text: str, language: str = "python") -> str | None:
    """The program, or None where the text has no fenced block. A block that isn't closed runs to the end."""
    tags = "|".join(map(re.escape, sorted(TAGS.get(language, (language,)), key=len, reverse=True)))
    marked = list(re.finditer(rf"```(?:{tags})[\d.]*", text))
    opening = marked[-1] if marked else re.search(r"```(?:[\w+#]*(?=\n))?", text)
    return None if opening is None else text[opening.end() :].partition("```")[0]
