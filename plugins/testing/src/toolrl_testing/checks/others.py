"""Contracts of data sets, observers and commands."""

from __future__ import annotations

import argparse
import pickle

from toolrl.errors import PluginError
from toolrl.plugins import checks
from toolrl.protocols import Command, Observer, TaskSource
from toolrl.types import Task
from toolrl_testing.checks import fail, require


def check_rows(source: TaskSource, *, most: int = 500) -> None:
    """The first `most` rows are tasks with messages and unique ids, the same each time they are read."""
    size = len(source)
    require(size > 0, "the data set is empty")
    ids: set[str] = set()
    for index in range(min(size, most)):
        task = source[index]
        if not isinstance(task, Task):
            fail(f"row {index} is {type(task).__name__}, expected a Task")
        require(task.messages, f"row {index} (id {task.id!r}) has no messages")
        require(task.id and task.id not in ids, f"row {index} has the id {task.id!r}, which is empty or another row's")
        ids.add(task.id)
    require(source[0] == source[0], "row 0 is another one when it is read again")
    require(isinstance(source[size - 1], Task), f"the last row, {size - 1}, can't be read")
    try:
        source[size]
    except IndexError:
        return
    fail(f"row {size} of {size} gives no IndexError, so iterating over the source never ends")


def check_pickles(source: TaskSource) -> None:
    """A copy in another process has the same rows."""
    try:
        copy: TaskSource = pickle.loads(pickle.dumps(source))
    except Exception as error:  # noqa: BLE001 - said as a broken contract
        fail(f"the data set doesn't pickle ({type(error).__name__}: {error}); open files when a row is read")
    require(len(copy) == len(source) and copy[0] == source[0], "a pickled copy of the data set has other rows")


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
