"""A run's data: each row is checked when it is drawn, and the order is a pure function of seed and position, so that a
run can be resumed."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from toolrl.chat.conversation import check_demonstration, check_question, read_messages
from toolrl.chat.row_remarks import Remarks
from toolrl.errors import DataError, ToolrlError
from toolrl.loop.data_state import rows_digest
from toolrl.protocols import ChecksTasks, HasDigest, TaskSource
from toolrl.rollouts.environment import pick_environment
from toolrl.types import Message, Task

_log = logging.getLogger(__name__)

T = TypeVar("T", covariant=True)


class Rows(Protocol[T]):
    """A sized, indexed sequence: a TaskSource, a list."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T: ...


MAX_DEPTH = 100
"""Levels of a task's values. A few hundred more, and what copies or writes them runs out of stack."""
SHOWN = 20
"""Bad rows that a message names."""
LOOKED_AT = 1000
"""First rows of which the start of a run finds out whether they can be scored."""
SECONDS = 1.0
"""Time that this may take."""


DEMONSTRATIONS = "sft.data"
"""The data set whose messages hold the assistant's turns. Those of other data sets end with a question."""


class CheckedTasks:
    """Tasks of a data set. One that can't be read, whatever its plugin raises for it, or that no run can take, is a
    DataError with its place. Remarks on rows are logged, each kind once."""

    def __init__(
        self,
        source: TaskSource,
        environments: Mapping[str, Any],
        where: str,
        rewards: Mapping[str, Mapping[str, ChecksTasks]] | None = None,
    ) -> None:
        """`environments` by name, as the config has them; `where` is the data set's place there. `rewards` are those
        that check tasks, by their names and the names of their environments."""
        self._source = source
        self._environments = environments
        self.place = where
        """The data set's place in the config."""
        self._rewards = rewards or {}
        self._remarks = Remarks()

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Task:
        try:
            with self._remarks.on_row(lambda: self._place(index)):
                task = self._with_messages(self._source[index])
                pick_environment(self._environments, task)
                _check_depth(task)
                return task
        except Exception as error:
            message, hint = f"the row can't be read: {type(error).__name__}: {error}", None
            if isinstance(error, ToolrlError):
                if error.where is not None:
                    raise
                message, hint = error.message, error.hint
            raise DataError(message, where=self._place(index), hint=hint) from error

    def digest(self) -> str | None:
        """A digest of the rows; None if the data set gives none."""
        return data_digest(self._source)

    def _place(self, index: int) -> str:
        place = getattr(self._source, "where", None)
        return str(place(index)) if callable(place) else f"{self.place}, row {index} (counted from 0)"

    def _with_messages(self, task: Task) -> Task:
        """The task with its messages checked, which a data set may have made itself. An environment may open a task
        without messages. Raises DataError."""
        if not isinstance(task, Task):
            raise DataError(f"the row is a {type(task).__name__}, expected a Task")
        messages = read_messages(task.messages) if task.messages else ()
        _check_text(messages)
        if self.place == DEMONSTRATIONS:
            check_demonstration(messages)
        else:
            check_question(messages)
        return replace(task, messages=messages)

    def bad(self) -> dict[int, ToolrlError]:
        """What is wrong with each row that can't be read or scored. Reads all."""
        found: dict[int, ToolrlError] = {}
        for index in range(len(self)):
            try:
                self._check_scored(index, self[index], placed=len(found) < SHOWN)
            except ToolrlError as error:
                found[index] = error
        return found

    def _check_scored(self, index: int, task: Task, *, placed: bool) -> None:
        """Raises DataError for a task that a reward of its environment can't score; with its place, which takes time
        to find out, if `placed`."""
        for name, reward in pick_environment(self._rewards, task).items() if self._rewards else ():
            try:
                reward.check_task(task)
            except Exception as error:
                problem, hint = f"{type(error).__name__}: {error}", None
                if isinstance(error, ToolrlError):
                    problem, hint = error.message, error.hint
                text = f"the reward {name!r} can't score it: {problem}"
                raise DataError(text, where=self._place(index) if placed else None, hint=hint) from error

    def check_first(self) -> None:
        """Warn of first rows that can't be read or scored. Raises DataError if that is so for all of them."""
        bad: dict[int, ToolrlError] = {}
        looked_at, end, in_time = 0, time.monotonic() + SECONDS, True
        for index in range(min(len(self), LOOKED_AT)):
            if not (in_time := time.monotonic() < end):
                break
            try:
                looked_at += 1
                self._check_scored(index, self[index], placed=len(bad) < SHOWN)
            except ToolrlError as error:
                bad[index] = error
        if bad:
            text = f"{self.place}: {len(bad)} of the first {looked_at} rows are bad: {described(bad)}"
            if len(bad) == looked_at and in_time:
                raise DataError(text)
            _log.warning(
                "%s\n  A run stops at a row that can't be read, and episodes that can't be scored fail. "
                "`data: {bad_rows: skip}` leaves such rows out.",
                text,
            )


class GoodTasks:
    """The tasks of a data set but for the bad ones, which are remarked on. Raises DataError where none is good."""

    def __init__(self, tasks: CheckedTasks, where: str) -> None:
        bad = tasks.bad()
        self._tasks = tasks
        self._good = [index for index in range(len(tasks)) if index not in bad]
        self.left_out = len(bad)
        if bad:
            text = f"{where}: {len(bad)} of {len(tasks)} rows are left out, as data.bad_rows is skip: {described(bad)}"
            if not self._good:
                raise DataError(text, hint="`toolrl config check --data` names bad rows.")
            _log.warning("%s", text)

    def __len__(self) -> int:
        return len(self._good)

    def __getitem__(self, index: int) -> Task:
        return self._tasks[self._good[index]]

    def digest(self) -> str | None:
        """A digest of all rows, bad ones too; None if the data set gives none."""
        return self._tasks.digest()


def data_digest(rows: Any) -> str | None:
    """A digest of a data set that gives one, or of a list of tasks; None for other data sets."""
    if isinstance(rows, HasDigest):
        return rows.digest()
    if isinstance(rows, list | tuple):
        return rows_digest(len(rows), lambda indices: [rows[index] for index in indices])
    return None


def left_out(sources: Iterable[TaskSource]) -> dict[str, float]:
    """The metric of bad rows; nothing where the config has a run stop on one."""
    counts = [source.left_out for source in sources if isinstance(source, GoodTasks)]
    return {"data/bad_rows": float(sum(counts))} if counts else {}


def described(bad: Mapping[int, ToolrlError]) -> str:
    """Bad rows as text, a line each."""
    lines = [f"{error.where}: {error.message}" for error in islice(bad.values(), SHOWN)]
    more = [f"and {len(bad) - SHOWN} more"] if len(bad) > SHOWN else []
    hints = dict.fromkeys(error.hint for error in islice(bad.values(), SHOWN) if error.hint)
    return "\n  ".join(["", *lines, *more, *hints])


def _check_text(messages: Iterable[Message]) -> None:
    """Raises DataError for a text that no tokenizer and no file takes."""
    for index, message in enumerate(messages):
        try:
            f"{message.content}{message.reasoning}".encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise DataError(
                f"'messages[{index}]' holds {half!a}, half of a character of two",
                hint="The text was cut inside of an emoji or another such character. Mend or drop it.",
            ) from None


def _check_depth(task: Task) -> None:
    calls = [call.arguments for message in task.messages for call in message.tool_calls]
    values, depth = [task.answer, task.tools_kwargs, task.extra, *calls], 0
    while values:
        depth += 1
        if depth > MAX_DEPTH:
            raise DataError(f"its values are nested more than {MAX_DEPTH} levels deep")
        values = [item for value in values for item in _inside(value)]


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


class EndlessOrder(Generic[T]):
    """An endless sequence over rows; each epoch is shuffled by a generator of its own. Raises DataError for no rows."""

    def __init__(self, rows: Rows[T], *, seed: int | str, shuffle: bool = True, where: str | None = None) -> None:
        """`where` is the place in the config that names the rows, for the error."""
        if len(rows) == 0:
            raise DataError("the data set is empty", where=where, hint="Check its path, split and limit.")
        self._rows = rows
        self._seed = seed
        self._shuffle = shuffle
        self._epoch = -1
        self._order: list[int] = []

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self._rows)

    def digest(self) -> str | None:
        """A digest of the rows; None if the data set gives none."""
        return data_digest(self._rows)

    def take(self, position: int, count: int) -> list[T]:
        """What stands at positions position … position + count − 1 of the endless sequence."""
        return [self._rows[self.row(place)] for place in range(position, position + count)]

    def row(self, place: int) -> int:
        """The index of the row at a position."""
        return self.visit(place)[0]

    def visit(self, place: int) -> tuple[int, int]:
        """The index of the row at a position, and how often that row came before: its epoch."""
        epoch, index = divmod(place, len(self._rows))
        if not self._shuffle:
            return index, epoch
        if epoch != self._epoch:
            self._order = list(range(len(self._rows)))
            random.Random(f"{self._seed}/{epoch}").shuffle(self._order)
            self._epoch = epoch
        return self._order[index], epoch
