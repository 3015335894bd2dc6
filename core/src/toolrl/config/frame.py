"""The base of a config's sections, and the form in which they name a component."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

OldNames = Mapping[str, str | float | None]
"""Old name of a key to its present one; to None for a key that has no effect any more; or to the only value that it may
have, for one whose other values would train something else. A config with an old name is read with a remark."""


class Frame(BaseModel):
    """Base of every section: unknown keys are mistakes."""

    old_names: ClassVar[OldNames] = {}

    model_config = ConfigDict(extra="forbid", populate_by_name=True, validate_default=True)


def from_name(value: Any) -> Any:
    """A bare string is short for `{use: NAME}`."""
    return {"use": value} if isinstance(value, str) else value


class ComponentUse(Frame):
    """A component by name, with its options. A bare string is short for `{use: NAME}`."""

    use: str = Field(description="The component's name, or `plugin/name`.", min_length=1)
    options: dict[str, Any] = Field(default_factory=dict, description="Options, checked by the plugin's own model.")


Use = Annotated[ComponentUse, BeforeValidator(from_name)]
