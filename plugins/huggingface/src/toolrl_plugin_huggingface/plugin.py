"""What the plugin `huggingface` registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import TaskSource


@hookimpl
def toolrl_datasets() -> Iterator[Component[TaskSource]]:
    """The data set."""
    yield Component(
        "huggingface",
        "toolrl_plugin_huggingface.dataset:load",
        summary="Data sets of the Hugging Face Hub, and files, through `datasets`.",
        options="toolrl_plugin_huggingface.options:HuggingFaceOptions",
    )
