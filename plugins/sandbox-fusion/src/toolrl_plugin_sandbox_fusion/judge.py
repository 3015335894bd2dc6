"""A solution against test cases: each case a request to the sandbox, many at once.

Statuses are those of verl, also in this: every case after the first compile error counts as a compile error. The index
decides which is first, not the order of answers; so later ones are dropped as soon as one doesn't compile.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from toolrl.errors import ToolError
from toolrl_common.http_client import patiently
from toolrl_plugin_sandbox_fusion.api import RunRequest
from toolrl_plugin_sandbox_fusion.cases import Cases, Status, verdict
from toolrl_plugin_sandbox_fusion.client import SandboxClient


@dataclass(frozen=True, slots=True)
class CaseLimits:
    """What each case may take."""

    seconds: float = 10.0
    """Compiling and running each."""
    memory_mb: int = 1024
    patience: float = 300.0
    """Seconds of trying again while the sandbox is busy."""


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """A case's status, and for a fault of the sandbox its words."""

    status: Status
    fault: str = ""


class CaseJudge:
    """Asks a sandbox, with at most `at_once` cases under way."""

    def __init__(self, client: SandboxClient, limits: CaseLimits, at_once: int) -> None:
        self._client = client
        self._limits = limits
        self._places = asyncio.Semaphore(at_once)

    async def __call__(self, cases: Cases, solution: str, language: str = "python") -> list[CaseVerdict]:
        """A verdict for each case, in order. Raises ToolsetError where the sandbox's address or key is wrong."""
        verdicts: list[CaseVerdict] = [CaseVerdict(Status.COMPILE_ERROR)] * len(cases)
        tasks: list[asyncio.Task[None]] = []

        async def run(index: int) -> None:
            verdicts[index] = await self._verdict(cases, index, solution, language)
            if verdicts[index].status is Status.COMPILE_ERROR:
                for later in tasks[index + 1 :]:
                    later.cancel()

        try:
            async with self._client, asyncio.TaskGroup() as group:
                tasks.extend(group.create_task(run(index)) for index in range(len(cases)))
        except ExceptionGroup as several:  # a wrong address is one for every case
            raise several.exceptions[0] from None
        first = next((n for n, found in enumerate(verdicts) if found.status is Status.COMPILE_ERROR), len(verdicts))
        return verdicts[:first] + [CaseVerdict(Status.COMPILE_ERROR)] * (len(verdicts) - first)

    async def _verdict(self, cases: Cases, index: int, solution: str, language: str) -> CaseVerdict:
        case = cases.case(index, solution)
        request = RunRequest(
            code=case.code,
            language=language,
            stdin=case.stdin,
            compile_timeout=self._limits.seconds,
            run_timeout=self._limits.seconds,
            memory_limit_mb=self._limits.memory_mb,
        )
        try:
            async with self._places:  # kept while the sandbox is busy: more requests beside it wouldn't help
                response = await patiently(lambda: self._client.run(request), self._limits.patience)
        except ToolError as error:
            return CaseVerdict(Status.API_ERROR, str(error))
        status = verdict(response, case)
        fault = response.message or f"status {response.status}" if status is Status.API_ERROR else ""
        return CaseVerdict(status, fault)
