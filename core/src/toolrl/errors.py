"""Every exception that toolrl raises, and whose fault each one is.

One base class for each boundary. A message says what was given, where, and what to do next; `where` and `hint` keep
those two parts apart, so that the command line can print them on lines of their own and `--json` gives them as fields.
"""

from __future__ import annotations

from typing import ClassVar

SAVE_AS_UTF8 = "Save it as UTF-8, for example: iconv -f LATIN1 -t UTF-8 OLD > NEW (-f UTF-16 for PowerShell's)"
"""The hint for a text file in another encoding."""


class ToolrlError(Exception):
    """Base of all errors that a user should read as a message and not as a traceback."""

    fault: ClassVar[str] = "toolrl"
    """The part at fault: config, data, plugin, parser, tool, engine, reward, chat_format, harness, checkpoint or
    toolrl."""
    exit_status: ClassVar[int] = 1
    """Of a command that ends with it."""
    # A plugin's subclass may do without this class's __init__, and must be readable all the same.
    message: str = ""
    where: str | None = None
    hint: str | None = None
    component: str | None = None
    """The name of the component at fault, if the raiser knows it."""

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        """A YAML path, a file with its line, or a component's qualified name."""
        self.hint = hint
        """The next command or edit."""

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  {self.hint}" if self.hint else text


class ConfigError(ToolrlError):
    """A config that can't be run. `problems` lists every mistake, each with its YAML path."""

    fault = "config"

    def __init__(self, problems: list[str] | str, *, where: str | None = None, hint: str | None = None) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems), where=where, hint=hint)


class DataError(ToolrlError):
    """A data file or a row that can't be read."""

    fault = "data"


class PluginError(ToolrlError):
    """A plugin that can't be used."""

    fault = "plugin"


class UnknownComponentError(PluginError):
    """No usable plugin gives a component of this kind and name."""


class AmbiguousComponentError(PluginError):
    """Two plugins give this short name; each is reachable as `plugin/name`."""


class ComponentLoadError(PluginError):
    """A component's target can't be imported, or isn't what its kind asks for."""


class ChatFormatError(ToolrlError):
    """Messages that can't be turned into tokens exactly: a template without a bridge, a role it refuses."""

    fault = "chat_format"


class ExactnessError(ToolrlError):
    """A training sequence that isn't what the model saw. Always a bug in toolrl or in an engine, never data."""

    fault = "engine"


class ParserError(ToolrlError):
    """A parser that raised, although parsers are total."""

    fault = "parser"


class EngineError(ToolrlError):
    """A rollout engine that failed to generate or to take weights."""

    fault = "engine"


class RewardError(ToolrlError):
    """A reward that raised or gave something that isn't a finite number."""

    fault = "reward"


class CheckpointError(ToolrlError):
    """A checkpoint that can't be written, is torn, or doesn't fit the config."""

    fault = "checkpoint"


class RunStoppedError(ToolrlError):
    """A run that ended itself: too many failed episodes, a loss that isn't finite."""


class RunFolderLostError(RunStoppedError):
    """A run whose folder was moved or deleted: what it wrote from then on could never be resumed."""


class ToolError(ToolrlError):
    """Raised by a tool to answer the model with an error text.

    The message is what the model reads. `transient=True` says that the same call may succeed later (a busy server), so
    that the policy may retry it; `retry_after` is the server's own wish in seconds.
    """

    fault = "tool"
    kind: ClassVar[str] = "tool_error"
    """Becomes `ToolResult.error`."""
    transient: bool = False
    retry_after: float | None = None

    def __init__(self, message: str, *, transient: bool = False, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.transient = transient
        self.retry_after = retry_after


class ArgumentsError(ToolError):
    """Raised by a tool, or by the policy, for arguments that don't fit. Says which, what came, what is expected."""

    kind = "bad_arguments"


class TransientToolError(ToolError):
    """A ToolError of which the tool knows that the same call may succeed later: a busy server, a lost connection.

    `retry_after` is the server's own wish in seconds; `toolrl.tools.parse_retry_after` reads it from a header.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message, transient=True, retry_after=retry_after)


class ToolTimeoutError(ToolError):
    """A call that was cancelled because it took longer than its policy allows."""

    kind = "timeout"


class ToolLimitError(ToolError):
    """A call that waited too long for its turn under a concurrency or rate limit, and didn't run."""

    kind = "limit"


class ToolUnavailableError(ToolError):
    """A call that didn't run because its tool is known not to work now: an open circuit breaker, a limiter that can't
    be reached, too many calls that never returned."""

    kind = "unavailable"


class ContextFullError(ToolError):
    """A question to the model whose messages leave no room in `rollout.max_episode_tokens`."""


class TurnsExhaustedError(ToolError):
    """A question to the model after the agent's last turn: `environments.*.max_turns`."""


class EpisodeEndedError(ToolError):
    """A question to the model of an episode that has ended."""


class HarnessError(ToolrlError):
    """A harness that raised, gave no Outcome, or never asked the model."""

    fault = "harness"


class ToolsetError(ToolrlError):
    """A toolset that failed outside of a call: it didn't start, a session didn't open, its own reward raised.

    No text for the model can stand for that, so the episode fails; `where` names the tool.
    """

    fault = "tool"


MOST_ANNOUNCED = 500
"""Characters behind the first line of another library's error that a message repeats."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its class where it has none: for another library's error in a message. A
    line that ends with a colon goes on with what it announces, up to MOST_ANNOUNCED characters."""
    first, _, rest = str(error).strip().partition("\n")
    if first.rstrip().endswith(":"):
        announced = " ".join(rest.split())
        return f"{first.rstrip()} {announced[:MOST_ANNOUNCED]}{'…' * (len(announced) > MOST_ANNOUNCED)}".rstrip()
    return first or type(error).__name__
