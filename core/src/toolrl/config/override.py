"""`--set a.b=c`: values from the command line, put into a config before it is checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolrl.config.paths import Path, format_path, parse_path, step
from toolrl.config.read import parse_yaml
from toolrl.errors import ConfigError
from toolrl.plugins.checks import nearest

_OF_A_COMPONENT = ("use", "options", "as", "rename", "policy", "weight", "markers")


def apply_overrides(tree: dict[str, Any], overrides: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Put each `PATH=VALUE` into the tree; returns the paths that were set, and the problems of the others.

    A value is YAML: `5`, `null`, `[a, b]`, `'text'`. Keys that aren't there are made, so that a misspelled one is found
    when the config is checked. In a list, an index replaces an item, and the index after the last adds one.
    `tools[0].options.x` also works where `tools[0]` is a bare name.
    """
    done: list[Path] = []
    problems: list[str] = []
    for override in overrides:
        text, equals, value = override.partition("=")
        try:
            if not equals:
                raise ValueError("expected PATH=VALUE, such as trainer.steps=50")
            path = parse_path(text.strip())
            _check_environment(tree, path)
            done.append(_set(tree, path, parse_yaml(value, "its value")[0]))
        except ConfigError as error:
            problems.append(f"--set {text}: {error.message}")
        except ValueError as error:
            problems.append(f"--set {override}: {error}")
    return done, problems


def _check_environment(tree: dict[str, Any], path: Path) -> None:
    """Raise ValueError for a value of an environment that isn't there: a misspelled name would make a second one."""
    names = tree.get("environments")
    if path[0] != "environments" or len(path) < 3 or not isinstance(names, dict) or not names or path[1] in names:
        return
    near = nearest(str(path[1]), map(str, names))
    hint = f"did you mean {near!r}?" if near else f"there are: {', '.join(map(str, names))}"
    raise ValueError(f"there is no environment {path[1]!r}; {hint} --set environments.{path[1]}={{…}} adds one")


def _set(tree: dict[str, Any], path: Path, value: Any) -> Path:
    """Set one value; the path with its indices as numbers. Raises ValueError where there is nothing to set it in."""
    node: Any = tree
    exact: Path = ()
    for position, part in enumerate(path):
        last = position == len(path) - 1
        key = step(node, part)
        if key is None:
            key = _new_key(node, part, exact)
            if isinstance(node, list):
                node.append(None)
        if last:
            node[key] = value
            return (*exact, key)
        below = node[key] if not isinstance(node, dict) else node.get(key)
        if below is None:
            below = node[key] = {}
        elif isinstance(below, str) and path[position + 1] in _OF_A_COMPONENT:
            below = node[key] = {"use": below}
        node, exact = below, (*exact, key)
    raise AssertionError("a path has at least one part")


def _new_key(node: Any, part: str | int, at: Path) -> str | int:
    """The key for a part that isn't there yet."""
    if isinstance(node, dict):
        return str(part)
    if isinstance(node, list):
        if str(part).isdigit() and int(part) == len(node):
            return len(node)
        held = f"{len(node)} item{'' if len(node) == 1 else 's'}"
        raise ValueError(f"{format_path(at)} is a list of {held}, so {part!r} is no place in it")
    raise ValueError(f"{format_path(at)} is {node!r:.60}, which has nothing in it to set")
