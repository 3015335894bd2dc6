"""Options of core's own components."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Options(BaseModel):
    """Base of all options: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid")


class FieldMapping(Options):
    """The columns of a row's fields: a name, or a dotted path into nested objects, `reward_model.ground_truth`.

    A field that is named here has to be in each row, except `context` and `system`. One left at its default may be
    missing.
    """

    messages: str = Field("messages", min_length=1, description="A list of chat messages; used if the row has it.")
    prompt: str = Field("prompt", min_length=1, description="Else this: a question as text, or a list of messages.")
    context: str | None = Field(
        None,
        min_length=1,
        description="A text that follows the question after a blank line, such as Alpaca's `input`; may be empty.",
    )
    system: str | None = Field(
        None,
        min_length=1,
        description="A text that becomes the system message; may be empty. Messages that have one keep theirs.",
    )
    answer: str = Field("answer", min_length=1, description="The ground truth.")
    images: str = Field(
        "images",
        min_length=1,
        description="Images of the question: a list, or a single one if named here. Each is a path (a relative one "
        "begins at the data file's folder), a PIL image, or an object with `bytes` or `path`. They stand where the "
        "messages say `<image>`, else before the first user message.",
    )
    id: str = Field("id", min_length=1, description="A name of the row; else made of file and index.")
    environment: str = Field(
        "environment",
        min_length=1,
        description="The environment that the task runs in; else `task_type` or `agent_name`, where one is called so.",
    )
    tools: str = Field(
        "tools",
        min_length=1,
        description="A list of tool names, to select among the environment's; else what `tool_selection` holds.",
    )
    tools_kwargs: str = Field(
        "tools_kwargs", min_length=1, description="By tool name: create_kwargs, execute_kwargs and their like."
    )
    extra: str | None = Field(
        None, min_length=1, description="An object for Task.extra; null for all columns that nothing else is read from."
    )

    @model_validator(mode="after")
    def _one_question(self) -> FieldMapping:
        if {"messages", "prompt"} <= self.model_fields_set:
            raise ValueError("name one of `messages` and `prompt`: each row's question is read from one place")
        return self


class FileDatasetOptions(Options):
    """Options of the data sets `jsonl` and `parquet`."""

    path: str | list[str] = Field(description="A file, a glob, or a list of these.", min_length=1)
    limit: int | None = Field(None, ge=1, description="Only the first so many rows.")
    fields: FieldMapping = Field(default_factory=FieldMapping, description="The columns of a row's fields.")
    environment: str | None = Field(None, description="The environment of rows that name none.")

    def check_files(self) -> None:
        """Raises DataError for a path that finds no file."""
        from toolrl.builtin.rows import find_files

        find_files(self.path)


class PlainConsoleOptions(BaseModel):
    """Options of `console` without toolrl-plugin-console, whose other options have no effect."""

    every: int = Field(1, ge=1, description="Print a line each so many steps.")


class JsonlOptions(Options):
    """Options of `jsonl`."""

    path: str = Field("-", min_length=1, description="A file that lines are added to; - for standard output.")
