"""The sections that the trainer's plugin completes: `model`, `algorithm`, `trainer` and `sft`.

Core knows the fields that its loop needs. The options model of a component of the kind `trainers` has a field for each
section that it brings, whose model is a subclass of core's; with it the section is checked whole. Where the trainer
isn't installed, what core doesn't know is left unchecked: an evaluation by an API needs no trainer.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from copy import copy
from typing import Any

from pydantic import BaseModel, create_model

from toolrl.config.components import options_model, with_hint
from toolrl.config.model import Config, TrainerFrame
from toolrl.config.problems import Problem
from toolrl.errors import PluginError
from toolrl.plugins.registry import Registry

_DEFAULT = str(TrainerFrame.model_fields["use"].default)


def trainer_options(registry: Registry, name: str) -> type[BaseModel] | None:
    """The model with the trainer's sections; None where it has none. Raises PluginError."""
    return options_model(registry.get("trainers", name).component)


def whole_config(registry: Registry, tree: Mapping[str, Any]) -> tuple[type[Config], list[Problem]]:
    """The config's model with the trainer's sections in it, and what is wrong with the trainer's name."""
    section = tree.get("trainer")
    name = section.get("use", _DEFAULT) if isinstance(section, Mapping) else _DEFAULT
    if not isinstance(name, str):
        return Config, []  # The frame says so.
    try:
        options = trainer_options(registry, name)
    except PluginError as error:
        # A resolved config of a run names the default too.
        return Config, [] if name == _DEFAULT else [Problem(("trainer", "use"), with_hint(error))]
    return (Config if options is None else with_sections(options)), []


@functools.cache
def with_sections(options: type[BaseModel]) -> type[Config]:
    """The config's model with a trainer's sections in the place of core's."""
    fields: dict[str, Any] = {name: (field.annotation, copy(field)) for name, field in options.model_fields.items()}
    return create_model("Config", __base__=Config, __doc__=Config.__doc__, **fields)


def as_config(checked: Config) -> Config:
    """The same values as a `Config` of core's own class, which every process can unpickle."""
    return Config.model_construct(_fields_set=set(checked.model_fields_set), **dict(checked))


def of_trainer(registry: Registry, config: Config, method: str, *more: Any) -> Iterator[str]:
    """Lines of the options model's `remarks(config)` or `missing(config, data)`, where it has such a method."""
    try:
        options = trainer_options(registry, config.trainer.use)
    except PluginError:
        return
    yield from getattr(options, method, lambda *_: ())(config, *more)
