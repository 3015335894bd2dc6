"""plugins.md: the components of every plugin in this repository, with their options."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator

from pydantic import BaseModel

from pagemaker.markdown import anchor, code, page, plural, prose, table
from pagemaker.models import field_table, fields, section
from pagemaker.source import needed_folders, packages, registry
from toolrl.cli.plugin_commands import command_words
from toolrl.kinds import KINDS
from toolrl.plugins.registry import RegisteredComponent

_INTRO = """\
What the packages of this repository register. `toolrl list-plugins -v` says it of what is installed; options stand
under `options:` beside `use:`, see [config](config.md)."""


def make() -> str:
    """The page."""
    rows = []
    for package in packages():
        plugin = registry().plugin(package.plugin)
        assert plugin is not None
        gives = "; ".join(
            f"{KINDS[kind].label} {', '.join(code(it.name) for it in plugin.components[kind])}"
            for kind in KINDS
            if kind in plugin.components
        )
        rows.append((code(package.plugin), code(package.distribution), package.description, gives))
    parts = [_INTRO, table(("plugin", "distribution", "what it is for", "gives"), rows)]
    for kind, about in KINDS.items():
        found = list(registry().components(kind))
        parts.append(f"## {plural(about.label).capitalize()}")
        parts.append(f"Registered by [{code(about.hook)}](hooks.md#{anchor(about.hook)}).")
        if not found:
            parts.append("No plugin of this repository has any.")
        for it in found:
            parts += _component(it, kind)
    return page("Plugins", *parts)


def first_party() -> str:
    """What toolrl knows of its own plugins where they aren't installed: a line a plugin, names by kind, and the folders
    that the plugin needs."""
    lines = []
    for package in packages()[1:]:
        assert package.distribution == f"toolrl-plugin-{package.plugin}"
        names: dict[str, list[str]] = {}
        for kind in KINDS:
            for it in registry().components(kind):
                if it.plugin.name == package.plugin and it.component.short:
                    names.setdefault(kind, []).append(it.component.name)
        if needs := needed_folders(package.folder):
            names["needs"] = needs
        lines.append(f"{json.dumps(package.plugin)}: {json.dumps(names)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def heading(found: RegisteredComponent, kind: str) -> str:
    """A component's heading: by its full name where two plugins give one of this name."""
    name = found.component.name
    alone = sum(it.component.name == name for it in registry().components(kind)) == 1
    return f"{KINDS[kind].label.capitalize()} {code(name if alone else found.qualified)}"


def _component(found: RegisteredComponent, kind: str) -> Iterator[str]:
    component = found.component
    yield f"### {heading(found, kind)}"
    yield f"{component.summary} From `{found.plugin.name}`."
    if kind == "commands":
        yield f"Run as `toolrl {command_words(found)}`; `--help` shows its arguments."
        return
    if kind == "trainers" and component.options:
        sections = ", ".join(f"[`{name}`](config.md#{name})" for name in component.load_options().model_fields)
        yield f"It brings the sections {sections} of a config."
        return
    model = component.load_options()
    if model is None or not model.model_fields:
        yield "It takes no options."
        return
    yield from _options(model)


def _options(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """A model's table, then those of the models in it, their fields under dotted names."""
    yield field_table(model, prefix=prefix)
    for name, field in fields(model, prefix):
        inner = section(field.annotation)
        if inner is not None:
            rest = inspect.cleandoc(inner.__doc__ or "")
            yield f"{code(name)}: " + prose(rest)
            yield from _options(inner, f"{name}.")
