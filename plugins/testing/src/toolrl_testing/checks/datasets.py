"""Contracts of data sets: a length, rows by index, ids that are unique, rows and source fit to be sent to a worker."""

from __future__ import annotations

import pickle

from toolrl.protocols import TaskSource
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
