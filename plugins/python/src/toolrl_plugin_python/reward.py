"""The reward `code`: the model's program against the unit tests of its task, in the sandbox.

A case that the sandbox couldn't run is no mistake of the model: the episode fails, and isn't trained on as a zero.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Sequence

from toolrl.errors import RewardError
from toolrl.protocols import BuildContext
from toolrl.tools.subprocess_pool import available_cores
from toolrl.types import Episode, Score
from toolrl_plugin_python import detection, paths
from toolrl_plugin_python.cases import Case, read_cases
from toolrl_plugin_python.jail.settings import NONE
from toolrl_plugin_python.keeper_process import KeeperError
from toolrl_plugin_python.options import CodeOptions, PythonOptions
from toolrl_plugin_python.sandbox import Sandbox
from toolrl_plugin_python.tool import settings_of
from toolrl_plugin_python.trials import KINDS, Trials, Verdict

_FENCE = re.compile(r"\s*+(`{3,}+|~{3,}+)\s*+([^\s`]*+)[^`]*+")
_PYTHON = frozenset({"python", "python3", "py", "py3"})
_log = logging.getLogger(__name__)


class CodeReward:
    """Scores programs."""

    def __init__(self, options: CodeOptions | None, context: BuildContext) -> None:
        self._options = options or CodeOptions()
        self._name = context.name
        self._places = asyncio.Semaphore(self._options.concurrency or available_cores())
        self._trials: Trials | None = None
        self._one_begins = asyncio.Lock()

    async def start(self) -> None:
        """Find out how programs can be isolated here, and keep ready for them. Raises ConfigError, KeeperError."""
        await (await self._prepare()).sandbox.start()

    async def stop(self) -> None:
        """End what `start` made."""
        trials, self._trials = self._trials, None
        if trials is not None:
            await trials.sandbox.stop()

    async def score(self, episode: Episode) -> Score:
        """Raises DataError for tests that can't be run, RewardError where the sandbox fails, ConfigError where there is
        no isolation."""
        cases = read_cases(episode.task, self._options.cases)[: self._options.max_cases]
        program = self._program(episode)
        if program is None:
            return Score(0.0, metrics={"correct": 0.0, "answered": 0.0})
        trials = await self._prepare()
        verdicts = await self._verdicts(trials, cases, program)
        passed = sum(verdict.kind == "passed" for verdict in verdicts)
        correct = float(passed == len(cases))
        metrics = {"correct": correct, "answered": 1.0}
        counts = Counter(verdict.kind for verdict in verdicts)
        for kind in KINDS[1:]:
            metrics[kind] = counts[kind] / len(verdicts)
        if not self._options.continuous:
            return Score(correct, metrics=metrics)
        return Score(passed / len(cases), metrics={**metrics, "pass_rate": passed / len(cases)})

    def _program(self, episode: Episode) -> str | None:
        text = episode.content_of(self._options.judge)
        program = text if self._options.code == "text" else solution(text)
        return program if program is not None and program.strip() else None

    async def _prepare(self) -> Trials:
        """The trials; the first call finds out how to isolate."""
        options = self._options
        async with self._one_begins:
            if self._trials is None:
                wanted = settings_of(PythonOptions(packages=options.packages))
                settings, found = await asyncio.to_thread(detection.detect, options.isolation, wanted)
                level = logging.WARNING if settings.mode == NONE else logging.INFO
                _log.log(level, "reward %r: isolation: %s", self._name, found)
                self._trials = Trials(
                    Sandbox(settings, found),
                    seconds=options.timeout,
                    memory_mb=options.memory_mb,
                    tolerance=options.tolerance,
                    search_path=paths.package_paths(options.packages)[1],
                )
            return self._trials

    async def _verdicts(self, trials: Trials, cases: Sequence[Case], program: str) -> list[Verdict]:
        """What became of the cases; where all have to pass, the first that doesn't is enough."""
        verdicts: list[Verdict] = []
        running = [asyncio.create_task(self._verdict(trials, case, program)) for case in cases]
        try:
            for done in asyncio.as_completed(running):
                verdict = await done
                verdicts.append(verdict)
                if verdict.kind != "passed" and not self._options.continuous:
                    break
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        return verdicts

    async def _verdict(self, trials: Trials, case: Case, program: str) -> Verdict:
        async with self._places:
            try:
                return await trials.verdict(case, program)
            except (KeeperError, OSError, TimeoutError) as error:
                raise RewardError(
                    f"the sandbox couldn't run a test: {type(error).__name__}: {error}",
                    hint="`toolrl doctor python` lists what works here.",
                ) from error


def solution(text: str) -> str | None:
    """The program, or None where there is none. A block that isn't closed runs to the end."""
    marked: str | None = None
    unmarked: str | None = None
    for language, code in _blocks(text):
        if language in _PYTHON:
            marked = code
        elif not language:
            unmarked = code
    return unmarked if marked is None else marked


def _blocks(text: str) -> list[tuple[str, str]]:
    """The fenced blocks in order: the language, and what stands between the fences."""
    found: list[tuple[str, str]] = []
    fence, language = "", ""
    inside: list[str] = []
    for line in text.split("\n"):
        match = _FENCE.fullmatch(line)
        if not fence:
            if match is not None:
                fence, language, inside = match[1], match[2].lower().strip("{}."), []
        elif match is not None and not match[2] and match[1][0] == fence[0] and len(match[1]) >= len(fence):
            found.append((language, "\n".join(inside)))
            fence = ""
        else:
            inside.append(line)
    if fence:
        found.append((language, "\n".join(inside)))
    return found
