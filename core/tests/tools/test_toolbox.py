"""The toolbox: several toolsets as one, every call answered in order, sessions closed on every path."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from toolrl.errors import ConfigError, DataError, ToolError, ToolsetError
from toolrl.protocols import EpisodeContext, Reply
from toolrl.tools import Tool, as_toolset, tool
from toolrl.tools.policy import PolicyOptions
from toolrl.tools.toolbox import ToolBox, ToolBoxSession, ToolEntry
from toolrl.types import CallError, Markers, Message, Task, ToolCall, ToolResult, ToolSpec, Turn
from toolrl_testing.fakes import RecordingToolset, make_build_context, make_episode, make_episode_context, make_task


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
def shout(text: str) -> str:
    """Shout."""
    return text.upper()


class Greeter(Tool):
    spec = ToolSpec("greet", "Greets.")

    def __init__(self, options: Any = None, context: Any = None) -> None:
        super().__init__(options, context)
        self.created: list[dict[str, Any]] = []

    async def create(self, instance_id: str, **kwargs: Any) -> str:
        self.created.append(kwargs)
        return f"Hello {kwargs.get('who', 'you')}."

    async def execute(self, instance_id: str, parameters: Any, **kwargs: Any) -> str:
        return "hello"

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return 2.0


def entry(target: Any, name: str = "t", **fields: Any) -> ToolEntry:
    return ToolEntry(name, as_toolset(target, None, make_build_context(name)), **fields)


def opened(box: ToolBox, task: Task | None = None) -> AbstractAsyncContextManager[ToolBoxSession]:
    return box.open(task or make_task(), make_episode_context(task))


def in_session(box: ToolBox, use: Any, task: Task | None = None) -> Any:
    async def main() -> Any:
        async with opened(box, task) as session:
            return await use(session)

    return asyncio.run(main())


# Targets.


def test_a_target_may_be_a_function_a_class_an_object_a_list_or_a_factory() -> None:
    context = make_build_context("demo", where="environments.default.tools[0]")
    targets = [add, Greeter, Greeter(), RecordingToolset, RecordingToolset(), [add, Greeter], lambda o, c: [add, shout]]
    targets[3] = lambda options, context: RecordingToolset()
    for target in targets:
        toolset = as_toolset(target, None, context)
        assert callable(toolset.open)


# Names.


def test_two_tools_with_one_name_are_an_error_that_names_both() -> None:
    with pytest.raises(ConfigError, match=r"two tools are called 'add': one of 'first', one of 'second'") as caught:
        ToolBox([entry(add, "first"), entry(add, "second")])
    assert "as: {add: another_name}" in str(caught.value)
    ToolBox([entry(add, "first"), entry(add, "second", rename={"add": "plus"})])


def test_a_rename_of_a_tool_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="`as` renames 'plus', and it has no such tool; it has add"):
        ToolBox([entry(add, "first", rename={"plus": "sum"})])


def test_markers_of_a_tool() -> None:
    markers = Markers(("<plus>",), ("</plus>",))

    async def specs(**given: Any) -> Any:
        async with ToolBox([entry(add, "first", **given)]).open(make_task(), make_episode_context()) as session:
            return session.specs()

    (spec,) = asyncio.run(specs(rename={"add": "plus"}, markers={"plus": markers}))
    assert (spec.name, spec.markers) == ("plus", markers)
    assert asyncio.run(specs())[0].markers is None
    with pytest.raises(ConfigError, match="`markers` are for 'add', and it has no such tool; it has plus"):
        ToolBox([entry(add, "first", rename={"add": "plus"}, markers={"add": markers})])


def test_a_rename_of_a_tool_that_no_session_has_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    markers = {"ecco": Markers(("<e>",), ("</e>",)), "repeat": Markers(("<r>",), ("</r>",))}
    rename = {"echo": "repeat", "ehco": "again"}
    box = ToolBox([ToolEntry("one", RecordingToolset(), rename=rename, markers=markers)])

    async def opened(box: ToolBox) -> None:
        async with box.open(make_task(), make_episode_context()):
            pass

    for _ in range(2):
        asyncio.run(opened(box))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert all(text in lines[0] for text in ("'one'", "`as`", "'ehco'", "echo"))
    assert all(text in lines[1] for text in ("'one'", "`markers`", "'ecco'", "repeat"))


def test_names_that_are_known_only_in_the_episode_clash_there() -> None:
    box = ToolBox([ToolEntry("one", RecordingToolset()), ToolEntry("two", RecordingToolset())])
    with pytest.raises(ConfigError, match="two tools are called 'echo': one of 'one', one of 'two'"):
        in_session(box, lambda session: None)


async def test_a_renamed_tool_answers_to_its_new_name_alone() -> None:
    box = ToolBox([entry(add, rename={"add": "plus"})])
    async with opened(box) as session:
        assert [spec.name for spec in session.specs()] == ["plus"]
        good, bad = await session.answer([ToolCall("plus", {"a": 1, "b": 2}), ToolCall("add", {"a": 1, "b": 2})])
    assert (good.result.text, good.call.name) == ("3", "plus")
    assert bad.result.error == "unknown_tool"


def test_messages_use_the_name_the_model_knows() -> None:
    box = ToolBox([entry(add, rename={"add": "plus"})])
    (record,) = in_session(box, lambda session: session.answer([ToolCall("plus", {})]))
    assert "the tool 'plus'" in record.result.text


async def test_a_task_speaks_of_tools_by_their_new_names() -> None:
    tool_object = Greeter()
    box = ToolBox([entry(tool_object, rename={"greet": "welcome"}), entry(add)])
    task = make_task(
        tools=("welcome",),
        tools_kwargs={"welcome": {"create_kwargs": {"who": "Ada"}}, "greet": {"create_kwargs": {"who": "nobody"}}},
    )
    async with opened(box, task) as session:
        assert [spec.name for spec in session.specs()] == ["welcome"]
        assert await session.opening() == [Message("user", "Hello Ada.")]
    assert tool_object.created == [{"who": "Ada"}]


# Selection.


async def test_a_tool_that_is_not_selected_is_not_even_created() -> None:
    greeter = Greeter()
    box = ToolBox([entry(greeter, "g"), entry(add, "a"), entry(shout, "s")])
    async with opened(box, make_task(tools=("add",))) as session:
        assert [spec.name for spec in session.specs()] == ["add"]
        (record,) = await session.answer([ToolCall("shout", {"text": "x"})])
        assert record.result.error == "unknown_tool"
        assert record.result.text.endswith("Available tools: add.")
        assert await session.rewards() == []
    assert greeter.created == []


async def test_a_toolset_whose_tools_are_known_late_is_left_out_of_the_rest() -> None:
    recorder = RecordingToolset(reward=5.0, opening=[Message("user", "hi")])
    box = ToolBox([ToolEntry("r", recorder), entry(add)])
    async with opened(box, make_task(tools=("add",))) as session:
        assert await session.opening() == []
        assert await session.rewards() == []
    assert [what for what, _ in recorder.events] == ["open", "close"]


def test_a_selection_of_a_tool_that_is_not_there() -> None:
    box = ToolBox([entry(add), entry(shout)])
    with pytest.raises(DataError, match=r"task 'task-0' selects the tool 'sub', .* It has: add, shout"):
        in_session(box, lambda session: None, make_task(tools=("add", "sub")))


async def test_no_tools_at_all() -> None:
    async with opened(ToolBox([])) as session:
        assert session.specs() == ()
        assert await session.answer([]) == ()
        (record,) = await session.answer([ToolCall("x", {})])
    assert "no tools are available" in record.result.text


# Answers.


async def test_every_item_is_answered_in_order() -> None:
    @tool
    async def crash() -> str:
        """Crashes."""
        raise KeyError("k")

    @tool
    async def hang() -> str:
        """Hangs."""
        await asyncio.sleep(60)
        return ""

    @tool
    async def refuse() -> str:
        """Refuses."""
        raise ToolError("No.")

    box = ToolBox([entry([add, crash, hang, refuse], policy=PolicyOptions(timeout=0.02))])
    items = [
        ToolCall("hang", {}, id="0"),
        ToolCall("add", {"a": 1, "b": 2}, id="1"),
        CallError("invalid_json", "This is no JSON: expected ','.", name="add", id="2"),
        CallError("unclosed", "The call isn't closed.", id="3"),
        ToolCall("ad", {"a": 1}, id="4"),
        ToolCall("crash", {}, id="5"),
        ToolCall("refuse", {}, id="6"),
        ToolCall("add", {"a": "x"}, id="7"),
    ]
    async with opened(box) as session:
        records = await session.answer(items, started=5.0)
        failures = session.failures
    assert [record.call for record in records] == items
    assert [record.result.error for record in records] == [
        "timeout",
        None,
        "malformed",
        "malformed",
        "unknown_tool",
        "crash",
        "tool_error",
        "bad_arguments",
    ]
    assert all(record.result.text for record in records)
    assert all(record.started >= 5.0 and record.seconds >= 0.0 for record in records)
    assert (
        records[2].result.text == "This is no JSON: expected ','. Arguments of 'add': {\"a\": integer, \"b\": integer}"
    )
    assert "Did you mean 'add'?" in records[4].result.text
    assert [failure.tool for failure in failures] == ["crash"]


def test_calls_of_one_turn_run_at_once() -> None:
    count = 10
    together = asyncio.Barrier(count)

    @tool
    async def meet(number: int) -> int:
        """Meet."""
        await together.wait()
        return number

    calls = [ToolCall("meet", {"number": number}) for number in range(count)]
    records = in_session(ToolBox([entry(meet)]), lambda session: session.answer(calls))
    assert [record.result.text for record in records] == [str(number) for number in range(count)]


# Environments.


class Game:
    """A text game: no tools, an opening, a reply to each turn."""

    def __init__(self, replies: list[Reply | None], error: Exception | None = None) -> None:
        self.replies = replies
        self.error = error

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def open(self, task: Task, episode: EpisodeContext) -> Game:
        return self

    async def __aenter__(self) -> Game:
        return self

    async def __aexit__(self, *error: object) -> None: ...

    def specs(self) -> list[ToolSpec]:
        return []

    async def opening(self) -> list[Message]:
        if self.error is not None:
            raise self.error
        return [Message("user", "You stand in a field.")]

    async def respond(self, turn: Turn) -> Reply | None:
        return self.replies.pop(0)

    async def call(self, call: ToolCall) -> ToolResult:
        raise AssertionError

    async def reward(self) -> float | None:
        return 0.5


TURN = make_episode("go north").turns[0]


async def test_an_environment_opens_and_replies_and_rewards() -> None:
    game = Game([Reply((Message("user", "A wall."),)), None, Reply((), reward=float("inf"))])
    box = ToolBox([entry(Greeter(), "g", weight=0.1), ToolEntry("game", game, weight=3.0)])
    # A selection is one of tools; an environment without tools always takes part.
    async with opened(box, make_task(tools=("greet",))) as session:
        assert [m.content for m in await session.opening()] == ["Hello you.", "You stand in a field."]
        assert await session.respond(TURN) == Reply((Message("user", "A wall."),))
        assert await session.respond(TURN) is None
        with pytest.raises(ToolsetError, match=r"game: .*no finite number"):
            await session.respond(TURN)
        rewards = await session.rewards()
        assert [(r.source, r.value, r.weight) for r in rewards] == [("tool:greet", 2.0, 0.1), ("tool:game", 0.5, 3.0)]


async def test_a_list_of_tools_speaks_as_one() -> None:
    box = ToolBox([entry([Greeter(), add, Game([Reply((), done=True)])], "all", weight=2.0)])
    async with opened(box) as session:
        assert [spec.name for spec in session.specs()] == ["greet", "add"]
        assert len(await session.opening()) == 2
        assert await session.respond(TURN) == Reply((), done=True)
        assert [(r.source, r.value, r.weight) for r in await session.rewards()] == [("tool:all", 2.5, 2.0)]


def test_waiting_for_a_session_has_no_time_limit_of_the_session() -> None:
    class Queue(RecordingToolset):
        waits: list[str] = []  # noqa: RUF012
        fails = False

        def open(self, task: Task, episode: EpisodeContext) -> Any:
            manager = super().open(task, episode)

            async def wait_turn() -> None:
                await asyncio.sleep(0.05)
                self.waits.append("waited")
                if self.fails:
                    raise ConnectionError("nobody there")

            manager.wait_turn = wait_turn  # type: ignore[attr-defined]
            return manager

    async def specs(session: ToolBoxSession) -> list[str]:
        return [spec.name for spec in session.specs()]

    queue = Queue(tools=[ToolSpec("one", "")])
    box = ToolBox([ToolEntry("queue", queue, policy=PolicyOptions(session_timeout=0.02))])
    assert in_session(box, specs) == ["one"]
    assert queue.waits == ["waited"]
    queue.fails = True
    with pytest.raises(ToolsetError, match="queue: opening a session failed: ConnectionError: nobody there"):
        in_session(box, specs)


# Starting, stopping, closing.


class Half(RecordingToolset):
    """One that starts and stops as it is told to."""

    def __init__(self, log: list[str], name: str, *, starts: bool = True, stops: bool = True) -> None:
        super().__init__(tools=[ToolSpec(name, "")])
        self.log, self.label, self.starts, self.stops = log, name, starts, stops

    async def start(self) -> None:
        self.log.append(f"start {self.label}")
        if not self.starts:
            raise ConnectionError("nobody there")

    async def stop(self) -> None:
        self.log.append(f"stop {self.label}")
        if not self.stops:
            raise AttributeError("no client")


async def test_toolsets_stop_in_reverse_each_also_where_another_fails() -> None:
    log: list[str] = []
    box = ToolBox([ToolEntry(it.label, it) for it in (Half(log, "a"), Half(log, "b", stops=False))])
    await box.start()
    with pytest.raises(AttributeError, match="no client"):
        await box.stop()
    await box.stop()
    assert log == ["start a", "start b", "stop b", "stop a"]


def test_a_close_that_fails_is_logged_and_hides_nothing(caplog: pytest.LogCaptureFixture) -> None:
    recorder = RecordingToolset(fails=frozenset({"close"}))
    box = ToolBox([ToolEntry("r", recorder)])

    async def fine(session: ToolBoxSession) -> str:
        return "result"

    async def bad(session: ToolBoxSession) -> str:
        raise ZeroDivisionError

    assert in_session(box, fine) == "result"
    with pytest.raises(ZeroDivisionError):
        in_session(box, bad)
    assert caplog.text.count("tool 'r': closing its session failed") == 2
