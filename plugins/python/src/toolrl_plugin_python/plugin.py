"""What the Python plugin registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Reward, Toolset


@hookimpl
def toolrl_tools() -> Iterator[Component[Toolset]]:
    """The tool `python`, also under the name `code_interpreter`."""
    name, options = "toolrl_plugin_python.tool", "toolrl_plugin_python.options:PythonOptions"
    summary = "Runs Python code in an isolated interpreter."
    yield Component("python", f"{name}:build_python", summary=summary, options=options, check=f"{name}:check")
    summary = "The same as `python` under another name."
    yield Component("code_interpreter", f"{name}:build_code_interpreter", summary=summary, options=options)


@hookimpl
def toolrl_rewards() -> Iterator[Component[Reward]]:
    """The reward `code`."""
    yield Component(
        "code",
        "toolrl_plugin_python.reward:CodeReward",
        summary="The model's program passes the task's unit tests, in the sandbox.",
        options="toolrl_plugin_python.options:CodeOptions",
    )
