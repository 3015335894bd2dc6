"""`toolrl.config.typed`: the config's sections as TypedDicts, by which editors complete arguments of `toolrl.train`."""

from __future__ import annotations

import re
import types
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pagemaker.config_page import Config
from pagemaker.models import description, fields, section
from toolrl.config.components import component_fields
from toolrl.config.frame import ComponentUse
from toolrl_plugin_torch.options import OptimizerConfig

_HEAD = '''\
"""The config's sections as TypedDicts: editors complete and type checkers read what `toolrl.train` is given.

Made from the pydantic models by `docs/reference/make.py`, with the sections of the trainer `torch`. The models check
the values; bounds and defaults are in the config reference. A plain dict is accepted wherever one of these is.
"""
# ruff: noqa: E501
# fmt: off

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

'''
_PLAIN = {int: "int", float: "float", str: "str", bool: "bool", Any: "Any", type(None): "None"}


def make() -> str:
    """The module's text."""
    models: dict[str, type[BaseModel]] = {}
    _collect(Config, models)
    classes = [_class(name, model) for name, model in models.items()]
    return _HEAD + "\n" + "\n\n".join(classes) + "\n"


def _collect(model: type[BaseModel], found: dict[str, type[BaseModel]]) -> None:
    """Models of sections by the name of their TypedDict, bases and inner ones first."""
    for base in _bases(model):
        _collect(base, found)
    for _, field in fields(model):
        inner = section(field.annotation)
        if inner is not None and not issubclass(inner, ComponentUse) and _name(inner) not in found:
            _collect(inner, found)
    found[_name(model)] = model


def _bases(model: type[BaseModel]) -> list[type[BaseModel]]:
    """Bases that several sections share, such as the optimizer's."""
    return [base for base in model.__bases__ if base is OptimizerConfig]


def _name(model: type[BaseModel]) -> str:
    stem = re.sub(r"(Config|Frame)$", "", model.__name__)
    return f"{stem}Section" if stem else "ConfigSections"


def _class(name: str, model: type[BaseModel]) -> str:
    kinds = {field for owner, field, _ in component_fields(Config) if owner is model}
    bases = _bases(model)
    inherited = {key for base in bases for key, _ in fields(base)}
    own = [(key, field) for key, field in fields(model) if key not in inherited]
    # Sections within sections are told in the reference alone: with every field the module would be twice as long.
    told = model in (Config, OptimizerConfig) or any(section(field.annotation) is model for _, field in fields(Config))
    parents = ", ".join([_name(base) for base in bases] or ["TypedDict"])
    lines = [f"class {name}({parents}, total=False):", f'    """{_summary(model.__doc__ or "")}"""']
    for key, field in own:
        lines.append(f"    {key}: {_type(key, field, kinds)}")
        if told and (field.description or section(field.annotation) is None):
            lines.append(f'    """{_summary(description(model, key, field))}"""')
    return "\n".join(lines)


def _summary(text: str) -> str:
    """The first sentence, as one line of a docstring."""
    line = " ".join(text.partition("\n\n")[0].split())
    line = re.split(r"(?<=[.;])\s", line)[0].rstrip(".;") + "."
    return line.replace("\\", "\\\\").replace('"', "'")


def _type(key: str, field: FieldInfo, kinds: set[str]) -> str:
    """A field's type. A component may be a name, a mapping or a Python object."""
    if key in kinds:
        return "list[Any]" if str(field.annotation).startswith("list[") else "Any"
    return _text(field.annotation)


def _text(annotation: Any) -> str:
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if hasattr(annotation, "__metadata__"):
        return _text(annotation.__origin__)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return f"Literal[{', '.join(map(_quoted, arguments))}]"
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(map(_text, arguments)))
    if origin is list:
        return f"list[{_text(arguments[0])}]"
    if origin is tuple:
        return "list[Any] | tuple[Any, ...]"
    if origin is dict:
        return f"Mapping[str, {_text(arguments[1])}]"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "Any" if issubclass(annotation, ComponentUse) else f"{_name(annotation)} | Mapping[str, Any]"
    raise ValueError(f"no type for {annotation!r}")


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
