"""The messages of an OpenEnv server's WebSocket, as data.

A client sends `{"type": "reset" | "step" | "state" | "close", "data": …}`; each but `close` is answered by one message,
in order: `{"type": "observation", "data": {"observation": …, "reward": …, "done": …}}`, `state`, or `error` with a code
and a message. A message carries no id. What a server sends is text from outside: reading it is total, and what is no
message becomes a `Failure` of code `PROTOCOL`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from toolrl import bounded_json

PROTOCOL = "PROTOCOL"
"""The code of an answer that is no message of the protocol."""
CAPACITY = "CAPACITY_REACHED"
INVALID = "VALIDATION_ERROR"
FATAL = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR", PROTOCOL)
"""After an error of these codes there is no session any more."""
_UNSAID = re.compile(r"Unable to serialize unknown type: <class '(ValueError|AssertionError)'>")
Reward = Annotated[float, Field(ge=-1e100, le=1e100, allow_inf_nan=False)]
"""An episode refuses larger ones."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What an environment answered to a reset or a step."""

    observation: Any
    """An object; of a Gymnasium environment anything that JSON can hold."""
    reward: Reward | None = None
    done: Annotated[bool, BeforeValidator(bool)] = False


@dataclass(frozen=True, slots=True)
class Failure:
    """An error message of the server."""

    code: str
    message: str
    data: Mapping[str, Any] = field(default_factory=dict)
    over: bool = False
    """True where the episode ended with it."""

    @property
    def is_refusal(self) -> bool:
        """True where a validator of the environment's own refused the action. A server can't put that validator's
        exception into its answer, and ends the session over it."""
        return self.code == "SESSION_ERROR" and _UNSAID.search(self.message) is not None


Answer = Observed | Failure


def reset_message(arguments: Mapping[str, Any]) -> str:
    """Asks for a new episode. Raises TypeError or ValueError where JSON can't hold the arguments."""
    return json.dumps({"type": "reset", "data": dict(arguments)}, allow_nan=False)


def step_message(action: Mapping[str, Any]) -> str:
    """Asks for one step. Raises TypeError or ValueError where JSON can't hold the action."""
    return json.dumps({"type": "step", "data": dict(action)}, allow_nan=False)


STATE = json.dumps({"type": "state"})
CLOSE = json.dumps({"type": "close"})
LIST_TOOLS: Mapping[str, Any] = {"type": "list_tools"}


def call_tool(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The action that calls a tool."""
    return {"type": "call_tool", "tool_name": name, "arguments": dict(arguments)}


def read_answer(raw: str | bytes) -> Answer:
    """What a message of the server says. Never raises."""
    try:
        message = bounded_json.loads(raw)
    except ValueError as error:
        return Failure(PROTOCOL, f"its answer isn't JSON that can be read: {str(error)[:200]}")
    if not isinstance(message, dict):
        return Failure(PROTOCOL, f"its answer is a {type(message).__name__}, expected an object")
    kind, data = message.get("type"), message.get("data")
    if not isinstance(data, dict):
        return Failure(PROTOCOL, "its answer has no `data`")
    if kind == "observation":
        if not isinstance(data.get("observation"), dict):
            return Failure(PROTOCOL, "its answer holds no observation")
        try:
            return read_observed(data)
        except ValueError as error:
            return Failure(PROTOCOL, str(error))
    if kind == "state":
        return Observed(data)
    if kind == "error":
        return Failure(str(data.get("code") or "ERROR"), str(data.get("message") or "no reason was given"), data)
    return Failure(PROTOCOL, f"its answer is of type {str(kind)[:40]!r}")


def read_observed(data: Mapping[str, Any]) -> Observed:
    """An observation, its reward and whether the episode ended. Raises ValueError for a reward that is none."""
    try:
        return _OBSERVED.validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"its {first['loc'][0]} is {first['input']!r:.40}: {first['msg']}") from None


_OBSERVED = TypeAdapter(Observed)
