"""BFCL's multi-turn tasks: simulated services as tools, a user of several turns, the leaderboard's own checker.

A task names classes such as `GorillaFileSystem`; each episode has instances of its own, whose methods are its tools.
The user speaks again when a turn has no call. The reward replays the episode's calls beside the ground truth, and is 1
where states and results agree after each user turn.

bfcl_eval keeps its instances in globals of one module, by the name that a caller gives; each caller has a name of its
own here, and deletes its instances.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import json
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from toolrl import Component, hookimpl
from toolrl.errors import ConfigError
from toolrl.protocols import EpisodeContext, Reply
from toolrl.tools import ToolError
from toolrl.types import Episode, Message, Score, Task, ToolCall, ToolResult, ToolSpec, Turn

Category = Literal["base", "miss_param", "long_context"]
"""`miss_func` isn't among them: it adds tools within an episode, whose prompt is written by then."""
IMPOSSIBLE = "_173"
"""The end of the ids of tasks whose ground truth calls a function that they don't have, one in each category."""
JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
"""What bfcl_eval calls a type, and JSON Schema otherwise."""


class DataOptions(BaseModel):
    """Options of the data set `bfcl`."""

    model_config = ConfigDict(extra="forbid")

    categories: list[Category] = Field(["base"], min_length=1, description="Of the multi-turn tasks; 199 tasks each.")
    skip: int = Field(0, ge=0, description="Leave out the first so many tasks of each category.")
    limit: int | None = Field(None, ge=1, description="At most so many tasks of each category.")
    environment: str | None = Field(None, description="The environment of the tasks.")


@hookimpl
def toolrl_datasets() -> Iterator[Component[Any]]:
    """The tasks."""
    yield Component(
        "bfcl",
        "bfcl_environment:Tasks",
        summary="BFCL's multi-turn tasks.",
        options="bfcl_environment:DataOptions",
    )


@hookimpl
def toolrl_tools() -> Iterator[Component[Any]]:
    """The services."""
    yield Component("bfcl", "bfcl_environment:Services", summary="BFCL's simulated services, and a user.")


@hookimpl
def toolrl_rewards() -> Iterator[Component[Any]]:
    """The checker."""
    yield Component("bfcl", "bfcl_environment:Checker", summary="BFCL's check of states and results.")


def require_bfcl(where: str | None) -> None:
    """Raises ConfigError where bfcl_eval isn't installed."""
    if importlib.util.find_spec("bfcl_eval") is None:
        hint = "pip install --no-deps bfcl-eval; with its requirements, which pin numpy, it needs a place of its own."
        raise ConfigError("bfcl_eval isn't installed", where=where, hint=hint)


def read(name: str) -> list[dict[str, Any]]:
    """The objects of one of bfcl_eval's files, below its folder `data`."""
    text = (importlib.resources.files("bfcl_eval") / "data" / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


class Tasks:
    """The data set `bfcl`. A task's messages are the user's first turn, its answer the ground truth's calls."""

    def __init__(self, options: DataOptions, context: Any) -> None:
        require_bfcl(context.where)
        self._tasks: list[Task] = []
        for category in options.categories:
            file = f"BFCL_v4_multi_turn_{category}.json"
            truth = {row["id"]: row["ground_truth"] for row in read(f"possible_answer/{file}")}
            rows = [row for row in read(file) if not row["id"].endswith(IMPOSSIBLE)][options.skip :][: options.limit]
            self._tasks += [_task(row, truth[row["id"]], options.environment) for row in rows]

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> Task:
        return self._tasks[index]


def _task(row: Mapping[str, Any], truth: Any, environment: str | None) -> Task:
    return Task(row["id"], _messages(row["question"][0]), truth, environment, extra={"bfcl": row})


def _messages(given: Sequence[Mapping[str, str]]) -> tuple[Message, ...]:
    return tuple(Message(item["role"], item["content"]) for item in given)  # type: ignore[arg-type]


class Services:
    """The toolset `bfcl`."""

    def __init__(self, options: None, context: Any) -> None:
        require_bfcl(context.where)
        self.known: dict[str, list[ToolSpec]] = {}

    async def start(self) -> None:
        """Read what describes the tools."""
        from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING as FILES

        for name, file in FILES.items():
            docs = read(f"multi_turn_func_doc/{file}")
            self.known[name] = [ToolSpec(it["name"], it["description"], _schema(it["parameters"])) for it in docs]

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[Conversation]:
        """One episode's instances of the services."""
        row = task.extra["bfcl"]
        specs = [spec for name in row["involved_classes"] for spec in self.known[name]]
        episode.notes["bfcl"] = calls = [[]]
        with own_name() as name:
            yield Conversation(row, specs, calls, name)

    async def stop(self) -> None:
        """Nothing is held between episodes."""


class Conversation:
    """One episode: the services' methods, and the user's further turns."""

    def __init__(self, row: Mapping[str, Any], specs: Sequence[ToolSpec], calls: list[list[Any]], name: str) -> None:
        """`calls` is filled with each user turn's calls, as bfcl_eval writes them."""
        self._row, self._specs, self._calls, self._name = row, specs, calls, name

    def specs(self) -> Sequence[ToolSpec]:
        """The methods of the classes that the task names."""
        return self._specs

    async def call(self, call: ToolCall) -> ToolResult:
        """What the method gives. An error in it is a result too, as on the leaderboard."""
        from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

        if not all(name.isidentifier() for name in call.arguments):  # bfcl_eval evaluates the call as Python.
            raise ToolError("The names of arguments are letters, digits and underscores.")
        written = f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"
        self._calls[-1].append([written])
        row = self._row
        (result,), _ = execute_multi_turn_func_call(
            [written],
            row["initial_config"],
            row["involved_classes"],
            self._name,
            row["id"],
            "long_context" in row["id"],
        )
        return ToolResult(result)

    async def opening(self) -> Sequence[Message]:
        """The first user turn is the task's."""
        return ()

    async def respond(self, turn: Turn) -> Reply | None:
        """The next user turn, or None after the last."""
        if len(self._calls) == len(self._row["question"]):
            return None
        self._calls.append([])
        return Reply(_messages(self._row["question"][len(self._calls) - 1]))

    async def reward(self) -> float | None:
        """The checker gives it."""
        return None


class Checker:
    """The reward `bfcl`: 1 where the leaderboard's checker accepts the episode, else 0."""

    def __init__(self, options: None, context: Any) -> None:
        require_bfcl(context.where)

    def score(self, episode: Episode) -> Score:
        """Episodes that ended before the user's last turn get 0."""
        from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

        row, calls = episode.task.extra["bfcl"], episode.notes["bfcl"]
        if len(calls) < len(row["question"]):
            return Score(0.0, metrics={"correct": 0.0})
        with own_name() as name:
            found = multi_turn_checker(calls, episode.task.answer, row, "", name)
        value = float(found["valid"])
        return Score(value, metrics={"correct": value})


@contextmanager
def own_name() -> Iterator[str]:
    """A name for instances of bfcl_eval's, which are deleted at the end."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    name = f"toolrl_{uuid.uuid4().hex}"
    try:
        yield name
    finally:
        for key in [key for key in vars(multi_turn_utils) if key.startswith(name)]:
            del vars(multi_turn_utils)[key]


def _schema(value: Any) -> Any:
    """bfcl_eval's types as those of JSON Schema, all the way down."""
    if isinstance(value, list):
        return [_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    schema = {key: _schema(item) for key, item in value.items()}
    if isinstance(kind := value.get("type"), str):
        schema["type"] = JSON_TYPES.get(kind, kind)
    return schema
