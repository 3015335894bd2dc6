"""Contracts of observers and commands."""

from __future__ import annotations

import argparse

from toolrl.errors import PluginError
from toolrl.plugins import checks
from toolrl.protocols import Command, Observer
from toolrl_testing.checks import fail, require


def check_observer(observer: Observer) -> None:
    """Its event methods exist, are plain functions, and take only what they are called with."""
    try:
        checks.check_observer(observer)
    except PluginError as error:
        fail(str(error))


def check_command(command: Command) -> None:
    """It adds its arguments, and its help can be shown."""
    parser = argparse.ArgumentParser("toolrl plugin verb")
    require(callable(getattr(command, "run", None)), "the command has no run(args)")
    try:
        command.configure(parser)
        text = parser.format_help()
    except Exception as error:  # noqa: BLE001 - said as a broken contract
        fail(f"configure() raised {type(error).__name__}: {error}")
    require(text, "the command has no help")
