"""What pages say of the code in prose: layers, packages, files."""

from __future__ import annotations

import re
import sys
import tomllib

from doc_pages import ROOT

sys.path.insert(0, str(ROOT / "tests"))
from test_layers import LAYERS

ARCHITECTURE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")


def test_the_layers_are_those_that_are_enforced() -> None:
    block = re.search(r"Imports go down only:\n\n```text\n(.*?)```", ARCHITECTURE, re.DOTALL)
    assert block is not None
    written = [set(part.replace(" ", "").split(",")) for part in "".join(block[1].splitlines()).split("→")]
    assert written == LAYERS[1:]


def test_every_package_is_listed_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[`([\w-]+)`\]\((.*?)\) \|", readme, re.MULTILINE)
    projects = [ROOT / "core", *(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]
    names = {tomllib.loads((it / "pyproject.toml").read_text())["project"]["name"]: it for it in projects}
    assert {name: ROOT / folder for name, folder in listed} == names
