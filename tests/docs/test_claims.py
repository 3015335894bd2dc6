"""What pages say of the code in prose: layers, kinds, packages, files, figures that stand in several places."""

from __future__ import annotations

import re
import sys
import tomllib

import pytest
from doc_pages import ROOT, pages

from toolrl.cli.new_plugin import TEMPLATES
from toolrl.kinds import KINDS

sys.path.insert(0, str(ROOT / "tests"))
from test_layers import LAYERS

ARCHITECTURE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
FILES = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if ".nox" not in path.parts]


def test_the_layers_are_those_that_are_enforced() -> None:
    block = re.search(r"Imports go down only:\n\n```text\n(.*?)```", ARCHITECTURE, re.DOTALL)
    assert block is not None
    written = [set(part.replace(" ", "").split(",")) for part in "".join(block[1].splitlines()).split("→")]
    assert written == LAYERS[1:]


def test_the_tree_has_every_part_of_core() -> None:
    tree = ARCHITECTURE.partition("## Layers")[0]
    parts = {name for names in LAYERS for name in names}
    assert [part for part in sorted(parts) if not re.search(rf"^ +{part}(\.py|/) ", tree, re.MULTILINE)] == ["__main__"]


@pytest.mark.parametrize("page", [it for it in pages() if "docs/explanation" in str(it)], ids=str)
def test_files_of_the_code_exist(page: object) -> None:
    names = {text for text in page.inline() if re.fullmatch(r"[\w/-]+\.py", text)}  # type: ignore[attr-defined]
    assert [name for name in sorted(names) if not any(f"/{file}".endswith(f"/{name}") for file in FILES)] == []


def test_every_kind_is_listed() -> None:
    written = (ROOT / "docs" / "howto" / "write-a-plugin.md").read_text(encoding="utf-8")
    listed = re.search(r"`--kind` is one of\s(.*?)\.\n", written, re.DOTALL)
    assert listed is not None
    assert set(re.findall(r"`([\w-]+)`", listed[1])) == set(TEMPLATES)
    assert [kind.hook for kind in KINDS.values() if f"| `{kind.hook}` |" not in written] == []
    protocols = ARCHITECTURE.partition("## Protocols")[2].partition("## ")[0]
    table = set(re.findall(r"^\| ([\w ]+?) \|", protocols, re.MULTILINE))
    assert {kind.label for kind in KINDS.values()} - {"tool"} <= table


def test_every_package_is_listed_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[`([\w-]+)`\]\((.*?)\) \|", readme, re.MULTILINE)
    projects = [ROOT / "core", *(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]
    names = {tomllib.loads((it / "pyproject.toml").read_text())["project"]["name"]: it for it in projects}
    assert {name: ROOT / folder for name, folder in listed} == names


def test_the_figures_of_the_quickstart_are_one_run() -> None:
    paths = ("README.md", "docs/tutorial/quickstart.md")
    tables = []
    for path in paths:
        text = (ROOT / path).read_text(encoding="utf-8")
        tables.append(re.findall(r"^((?:at the start|after GRPO) .*)$", text, re.MULTILINE))
    assert len(tables[0]) == 3
    assert tables[0] == tables[1]
    (start, with_tools, control) = [re.search(r"[\d.]+%", line)[0] for line in tables[0]]  # type: ignore[index]
    performance = (ROOT / "docs" / "explanation" / "performance.md").read_text(encoding="utf-8")
    row = re.search(r"^\| 0 \| ([\d.]+%) \| ([\d.]+%) \| ([\d.]+%) ", performance, re.MULTILINE)
    assert row is not None
    assert row.groups() == (start, with_tools, control)


def test_nothing_is_counted_that_the_code_may_change() -> None:
    """A count in prose is wrong after the next change: leave it out."""
    numbers = "three|four|five|six|seven|eight|nine|ten|eleven|twelve|eighteen|nineteen|twenty"
    things = "registration hooks|hooks|events|plugins|kinds of (?:component|plugin)s?"
    counted = re.compile(rf"\b(?:{numbers}|\d\d+) (?:{things})\b", re.IGNORECASE)
    found = [f"{page}: {match[0]}" for page in pages() for match in counted.finditer(page.prose)]
    assert found == []
