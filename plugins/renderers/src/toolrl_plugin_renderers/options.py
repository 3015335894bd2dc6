"""Options of the chat format and of the parser."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

_SETTINGS = (
    "The renderer's own settings, such as `enable_thinking: false` or `reasoning_effort: low`; the README lists them."
)


class RenderersFormatOptions(BaseModel):
    """Options of the chat format `renderers`."""

    model_config = ConfigDict(extra="forbid")

    renderer: str = Field(
        "auto",
        description="The renderer of the model's family, such as `qwen3` or `glm-5`. auto: by the name of the model "
        "that the tokenizer was loaded from, which must be one that the library knows.",
    )
    options: dict[str, Any] = Field(default_factory=dict, description=_SETTINGS)

    @model_validator(mode="after")
    def _fit_the_library(self) -> RenderersFormatOptions:
        # Without the library nothing can be checked here; building the component names what is missing.
        from toolrl_plugin_renderers.library import settings_problem

        problem = settings_problem(self.renderer, self.options)
        if problem:
            raise ValueError(problem)
        return self


class RenderersParserOptions(RenderersFormatOptions):
    """Options of the parser `renderers`."""

    tokenizer: str | None = Field(
        None,
        description="A folder with the model's tokenizer, for use without a run (`toolrl parse`); in a run it is the "
        "model's own.",
    )
