"""Reads a config's YAML: syntax errors with their line, no key twice, and `1e-6` as the number it looks like."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from toolrl.errors import SAVE_AS_UTF8, ConfigError

MOST_VALUES = 1_000_000
"""Maximum number of values in a config, with its aliases written out."""


class _Loader(yaml.SafeLoader):
    """Safe YAML that lists duplicate keys, of which plain YAML would take the last."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name
        self.problems: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key, line = key_node.value, key_node.start_mark.line + 1
            if key in seen:
                self.problems.append(f"line {line}: the key {key!r} stands here and on line {seen[key]}")
            seen.setdefault(key, line)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        # A key that was merged several times counts once; otherwise merges of merges multiply.
        pairs = {
            (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key): (key, it) for key, it in node.value
        }
        node.value = list(pairs.values())


# YAML 1.1 takes a number without a dot, such as 1e-6, for text.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d[\d_]*(?:\.[\d_]*)?[eE][-+]?\d+\Z"), list("-+0123456789")
)


def read_config(path: str) -> tuple[dict[str, Any], list[str]]:
    """The file's content, and problems that don't keep it from being read. Raises ConfigError for those that do."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no file {path!r}", hint="Give the path of a config, a YAML file, or a run's folder."
        ) from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path!r} is a folder", hint="Give the path of a config, a YAML file.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path!r} isn't UTF-8: {error}", hint=SAVE_AS_UTF8) from error
    except OSError as error:
        raise ConfigError(f"{path!r} can't be read: {error}") from error
    tree, problems = parse_yaml(text, path)
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise ConfigError(f"a config is a mapping of sections, this is a {type(tree).__name__}", where=path)
    return tree, problems


def parse_yaml(text: str, name: str) -> tuple[Any, list[str]]:
    """A YAML text, and the keys that stand twice in it. Raises ConfigError with line and column for a syntax error."""
    loader = None
    try:
        loader = _Loader(text, name)
        return unaliased(loader.get_single_data()), loader.problems
    except ConfigError as error:
        error.where = name
        raise
    except RecursionError:
        what = "the YAML is nested too deep, or an alias stands inside the value that it names"
        raise ConfigError(what, where=name) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.problem, error.context) if part) or "not YAML"
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        lines = text.splitlines()
        shown = f"\n  {lines[mark.line].strip()}" if mark and mark.line < len(lines) else ""
        hint = 'Inside {…} and […], write "${NAME}" in quotes.' if "${" in shown else None
        if "unknown escape" in what or "escape sequence" in what:
            hint = r"In double quotes a backslash begins an escape: write 'C:\models' in single quotes, or C:/models."
        raise ConfigError(f"not valid YAML: {what}{shown}", where=where, hint=hint) from error
    except (yaml.YAMLError, ValueError) as error:  # A date that there isn't, a number of thousands of digits.
        raise ConfigError(f"not valid YAML: {error}", where=name) from error
    finally:
        if loader is not None:
            loader.dispose()


def unaliased(node: Any) -> Any:
    """A copy in which every YAML alias is a value of its own. Raises RecursionError for an alias inside the value that
    it names, ConfigError for more than a million values: aliases of aliases make billions out of ten lines."""
    return _copied(node, count(1))


def _copied(node: Any, counter: Iterator[int]) -> Any:
    if next(counter) > MOST_VALUES:
        raise ConfigError(
            f"the YAML has more than {MOST_VALUES:,} values once its aliases are written out",
            hint="Write the values out, or remove aliases (`*name`) that stand inside of other aliases' values.",
        )
    if isinstance(node, dict):
        return {key: _copied(item, counter) for key, item in node.items()}
    return [_copied(item, counter) for item in node] if isinstance(node, list) else node
