"""config.md: every section of a run's config, with its fields, types, bounds, defaults and descriptions."""

from __future__ import annotations

import inspect

from pydantic import BaseModel

from pagemaker.markdown import anchor, code, page, plural, prose, table
from pagemaker.models import field_table, fields, section
from pagemaker.source import module_doc
from toolrl.config.components import component_fields
from toolrl.config.frame import ComponentUse
from toolrl.config.model import Config as Frame
from toolrl.config.problems import model_at
from toolrl.config.sections import with_sections
from toolrl.kinds import KINDS
from toolrl.tools.policy import PolicyOptions
from toolrl_plugin_torch.algorithm import PRESETS, AlgorithmConfig
from toolrl_plugin_torch.options import TorchOptions

Config: type[Frame] = with_sections(TorchOptions)
"""With the sections of the trainer `torch`."""

_INTRO = """\
A config is one YAML file. `toolrl config check FILE` finds every mistake in it, without building or starting anything;
`toolrl config show FILE` prints it with all defaults; `toolrl config schema` prints a JSON Schema for editors.

Where a **component** is asked for, write its name, or `plugin/name`, or a mapping:

```yaml
engine: {use: transformers, options: {max_batch: 64}}
```

The options of each component are on [the page of plugins](plugins.md). An unknown key is a mistake everywhere. Paths
are relative to the folder that the command runs in. Where a meaning says None, write `null` or leave the field out."""


def make() -> str:
    """The page."""
    parts = [_INTRO, "## The whole\n\n" + field_table(Config, own_type=_types(Config))]
    for name, field in fields(Config):
        model = section(field.annotation)
        if model is not None and not issubclass(model, ComponentUse):
            parts += _section(name if name != "environments" else "environments.<name>", model)
    parts += ["## Variables", prose(module_doc("config.env"))]
    parts += ["## Values from the command line", prose(inspect.cleandoc(_overrides()))]
    parts += ["## End flags", prose(module_doc("parsing.flags"))]
    return page("Config", *parts)


def _section(path: str, model: type[BaseModel]) -> list[str]:
    """A section and the sections in it."""
    parts = [f"## {code(path)}", inspect.cleandoc(model.__doc__ or ""), field_table(model, own_type=_types(model))]
    if model is AlgorithmConfig:
        parts += [_presets()]
    for name, field in fields(model):
        inner = section(field.annotation)
        if inner is None:
            continue
        if issubclass(inner, ComponentUse):
            # A plain component is told once, at the top; one with fields of its own gets its table.
            item = model_at(model, (name, 0)) or inner
            if item is not ComponentUse:
                parts += [*_section(f"{path}.{name}[]", item)]
        else:
            parts += _section(f"{path}.{name}", inner)
    if "policy" in model.model_fields:
        parts += [
            f"## {code(path + '.policy')}",
            "What happens around every call of the toolset's tools.",
            field_table(PolicyOptions),
        ]
        for name, field in fields(PolicyOptions):
            inner = section(field.annotation)
            if inner is not None:
                parts += _section(f"{path}.policy.{name}", inner)
    return parts


def _types(model: type[BaseModel]) -> dict[str, str]:
    """The type's text of fields that hold components or sections."""
    texts = {}
    kinds = {name: kind for owner, name, kind in component_fields(Config) if owner is model}
    for name, field in fields(model):
        kind = kinds.get(name)
        inner = section(field.annotation)
        if kind is not None:
            many = "list of " if "list[" in str(field.annotation) else ""
            many = f"one or a {many}" if many and inner is ComponentUse and model_at(model, (name,)) else many
            label = KINDS[kind].label
            link = f"[{plural(label) if many else label}](plugins.md#{anchor(plural(label))})"
            texts[name] = many + link
        elif inner is not None and model is Config:
            texts[name] = f"[section](#{anchor('environments<name>' if name == 'environments' else name)})"
            if name == "environments":
                texts[name] = f"mapping of name to {texts[name]}"
    return texts


def _presets() -> str:
    names = list(next(iter(PRESETS.values())))
    rows = [(code(preset), *(code(str(values[name]).lower()) for name in names)) for preset, values in PRESETS.items()]
    title = "The presets are these defaults; a field that the config sets keeps its value.\n\n"
    return title + table(("preset", *(code(name) for name in names)), rows)


def _overrides() -> str:
    from toolrl.config import override

    text = inspect.getdoc(override.apply_overrides) or ""
    # Its first sentence says what the function gives; the others say what may be written.
    return "`--set PATH=VALUE` overrides one value of the file and may be given often. " + text.partition("\n\n")[2]
