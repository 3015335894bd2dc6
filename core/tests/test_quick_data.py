"""Data made by a quick constructor is what the dataclass's own would have made."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any

import pytest

from toolrl import types
from toolrl.frozen import changed
from toolrl.types import Message, ToolCall, ToolResult, Turn

QUICK = [
    types.ToolCall, types.Message, types.ToolResult, types.CallRecord, types.ParsedTurn, types.Sampling, types.Rendered,
    types.Decoded, types.Segment, types.Turn, types.Episode,
]  # fmt: skip


@pytest.mark.parametrize("kind", QUICK)
def test_a_quick_constructor_takes_what_the_fields_say(kind: Any) -> None:
    fields = dataclasses.fields(kind)
    parameters = list(inspect.signature(kind).parameters.values())
    assert [it.name for it in parameters] == [field.name for field in fields]
    needed = [
        it.name for it in fields if it.default is dataclasses.MISSING and it.default_factory is dataclasses.MISSING
    ]
    assert [it.name for it in parameters if it.default is inspect.Parameter.empty] == needed
    made = kind(*[name.upper() for name in needed])
    for field in fields:
        value = getattr(made, field.name)
        if field.name in needed:
            assert value == field.name.upper()
        elif field.default is not dataclasses.MISSING:
            assert value is field.default
        else:
            assert value == field.default_factory()  # type: ignore[misc]
            assert value is not getattr(kind(*needed), field.name)
    assert made == pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == dataclasses.replace(made)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, fields[0].name, 1)
    with pytest.raises(TypeError):
        kind(*needed, nothing_of_the_kind=1)


def test_changed_is_replace() -> None:
    turn = Turn(3, (), (ToolCall("a", {"x": 1}),), (), "stop", content="c")
    assert changed(turn, calls=(1,)) == dataclasses.replace(turn, calls=(1,))  # type: ignore[arg-type]
    result = ToolResult("text", metrics={"m": 1.0})
    assert changed(result, text="other") == ToolResult("other", metrics={"m": 1.0})
    assert result.text == "text"
    with pytest.raises(TypeError):
        changed(Message("user", "hi"), nothing_of_the_kind=1)


@dataclasses.dataclass(frozen=True, slots=True)
class Timed(ToolResult):
    """A tool's own kind of result: its constructor has something to check, and something to find out."""

    cost: float = 0.0
    length: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.cost < 0:
            raise ValueError("a cost is no gain")
        object.__setattr__(self, "length", len(self.text))


def test_changed_data_of_a_kind_of_its_own_is_checked_and_completed_as_ever() -> None:
    made = Timed("four", cost=1.0)
    assert changed(made, text="seven!!") == dataclasses.replace(made, text="seven!!")
    assert changed(made, text="seven!!").length == 7
    with pytest.raises(ValueError, match="no gain"):
        changed(made, cost=-1.0)
