"""An API that answers as a test says, and episodes that ask it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from toolrl.parsing.flags import EndFlags
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.runner import Runner
from toolrl.tools import as_toolset, tool
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode
from toolrl_plugin_api.engine import ApiEngine
from toolrl_plugin_api.options import ChatOptions
from toolrl_plugin_api.stand_ins import Characters, NativeCalls
from toolrl_testing.fakes import make_build_context, make_task
from toolrl_testing.http_stub import HttpStub, http_stub

sys.path.insert(0, str(Path(__file__).parent / "support"))

from api_stub import KEY, says  # beside this file


@tool
def double(number: int) -> str:
    """Doubles a number."""
    return str(2 * number)


@pytest.fixture
def api() -> Iterator[HttpStub]:
    with http_stub(lambda _: says()) as stub:
        yield stub


@pytest.fixture
def run(api: HttpStub) -> Callable[..., list[Episode]]:
    """Plays episodes: `run(count=2, parser=…, toolset=…, **options)`."""

    def play(
        count: int = 1, *, parser: Any = None, toolset: Any = None, flags: tuple[str, ...] = (), **options: Any
    ) -> list[Episode]:
        given = {"base_url": f"{api.url}/v1", "model": "toy", "api_key": KEY, **options}
        fast = {"attempts": 3, "first_delay": 0.01, "on_timeout": True}
        engine = ApiEngine(ChatOptions.model_validate({"retry": fast, **given}), make_build_context("chat"))
        entry = ToolEntry("tools", toolset or as_toolset(double, None, make_build_context()))
        context = make_build_context()
        parts = (parser or NativeCalls(None, context), Characters(None, context), ToolBox([entry]))
        environment = Environment("default", *parts, end_flags=EndFlags(flags))

        async def main() -> list[Episode]:
            await environment.start()
            await engine.start()
            try:
                runner = Runner(engine, {"default": environment}, max_error_rate=1.0, concurrency=count)  # type: ignore[arg-type]
                groups = await runner.run([make_task()], count, Limits(50, 2000, 0.7), round_id="eval-0")
            finally:
                await engine.stop()
                await environment.stop()
            return list(groups[0].episodes)

        return asyncio.run(main())

    return play
