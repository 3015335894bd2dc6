"""The section `data`: the data sets that tasks come from, one or a list of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator

from toolrl.config.frame import ComponentUse, Frame, Use, from_name
from toolrl.plugins.checks import did_you_mean


class DataUse(ComponentUse):
    """A data set of a list."""

    name: str | None = Field(
        None,
        pattern=r"^[\w.-]+$",
        description="Name in metrics (`dataset/accuracy/NAME`) and at the start of task ids. Default: the component's.",
    )
    environment: str | None = Field(
        None, min_length=1, description="Environment that its rows are played in, unless a row names one."
    )

    @property
    def label(self) -> str:
        """The name in metrics."""
        return self.name or self.use.rpartition("/")[2]


class TrainDataUse(DataUse):
    """A data set of a list to train on."""

    share: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Its part of the tasks sampled, relative to the other shares. Default: by its number of rows. Set "
        "for all data sets of the list or for none.",
    )


def _form(value: Any) -> str:
    return "list" if isinstance(value, list | tuple) else "one"


_One = Annotated[Use | None, Tag("one")]
_TRAIN_ITEM = Annotated[TrainDataUse, BeforeValidator(from_name)]
_EVAL_ITEM = Annotated[DataUse, BeforeValidator(from_name)]
TrainData = Annotated[_One | Annotated[list[_TRAIN_ITEM], Tag("list")], Discriminator(_form)]
EvalData = Annotated[_One | Annotated[list[_EVAL_ITEM], Tag("list")], Discriminator(_form)]
DataUses = ComponentUse | Sequence[DataUse] | None
"""What stands at the place of a data set in a checked config."""


class DataConfig(Frame):
    """The data sets that tasks come from."""

    train: TrainData = Field(
        None, description="Data set to train on, or a list of data sets that are mixed by their shares."
    )
    eval: EvalData = Field(
        None, description="Data set to evaluate on, or a list of them, whose metrics are also reported one by one."
    )
    shuffle: bool = Field(True, description="Shuffle the training tasks anew each epoch, by the run's seed.")
    bad_rows: Literal["stop", "skip"] = Field(
        "stop",
        description="Handling of rows that can't be read. stop: the run ends when it draws one. skip: these and rows "
        "that a reward can't score are left out at the start, with a warning and the metric `data/bad_rows`.",
    )

    @field_validator("train", "eval")
    @classmethod
    def _fit_together(cls, uses: DataUses) -> DataUses:
        if uses is None or isinstance(uses, ComponentUse):
            return uses
        if not uses:
            raise ValueError("the list is empty; expected data sets, such as [{use: jsonl, options: {path: a.jsonl}}]")
        if twice := [name for name, count in Counter(use.label for use in uses).items() if count > 1]:
            raise ValueError(f"duplicate name {twice[0]!r}; give each data set a `name` of its own")
        given = [use.share is not None for use in uses if isinstance(use, TrainDataUse)]
        if any(given) and not all(given):
            raise ValueError(
                f"item {given.index(False)} has no `share`; set it for all data sets of the list or for none"
            )
        return uses

    def unknown_environments(self, known: Collection[str]) -> Iterator[str]:
        """A line for each environment that a data set names and the config doesn't have."""
        for key in ("train", "eval"):
            uses = getattr(self, key)
            for index, use in enumerate(uses if isinstance(uses, list) else ()):
                if use.environment is not None and use.environment not in known:
                    hint = did_you_mean(use.environment, known)
                    yield f"data.{key}[{index}].environment: unknown environment {use.environment!r}. {hint}"
