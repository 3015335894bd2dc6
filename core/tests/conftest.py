"""What tests of several parts use: a folder of installed distributions that a test writes itself."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

COMPATIBLE = ("toolrl>=0.1,<0.2",)


class FakeSite:
    """A folder that looks like site-packages: packages, each with the metadata that an installed wheel has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def add(
        self,
        name: str,
        plugin: str,
        *,
        distribution: str = "",
        version: str = "1.0",
        requires: Sequence[str] = COMPATIBLE,
        modules: Mapping[str, str] | None = None,
        entry_point: str = "",
    ) -> str:
        """Write a distribution whose module `plugin` has this source; the package's name."""
        distribution = distribution or f"toolrl-plugin-{name}"
        package = distribution.replace("-", "_")
        (self.folder / package).mkdir()
        sources = {"__init__": "", "plugin": plugin, **(modules or {})}
        for module, source in sources.items():
            (self.folder / package / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        info = self.folder / f"{package}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {distribution}", f"Version: {version}"]
        lines += [f"Requires-Dist: {need}" for need in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
        value = entry_point or f"{package}.plugin"
        (info / "entry_points.txt").write_text(f"[toolrl.plugins]\n{name} = {value}\n", encoding="utf-8")
        return package

    def run(
        self, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`toolrl ARGUMENTS` in a process of its own that sees this folder."""
        return self.python("-m", "toolrl", *arguments, env=env, cwd=cwd)

    def python(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        prefix: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """A Python process that sees this folder; `prefix` is the command that starts it."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith("TOOLRL_")}
        return subprocess.run(
            [*prefix, sys.executable, *arguments],
            env={**clean, "PYTHONPATH": str(self.folder), **(env or {})},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def site(tmp_path: Path) -> FakeSite:
    """An empty folder of distributions, beside those that are really installed."""
    return FakeSite(tmp_path / "site")


GOOD = """
from toolrl import Component, hookimpl

@hookimpl
def toolrl_tools():
    yield Component("demo_tool", "toolrl_plugin_good.tool:build", summary="A tool.")
"""

TROUBLE: dict[str, dict[str, object]] = {
    "missing_module": {"plugin": "import no_such_module_xyz\n"},
    "raising": {"plugin": "raise RuntimeError('boom at import')\n"},
    "exiting": {"plugin": "raise SystemExit(3)\n"},
    "bad_syntax": {"plugin": "def oops(:\n"},
    "from_the_future": {"plugin": GOOD, "requires": ("toolrl>=9",)},
    "misspelled": {"plugin": GOOD.replace("toolrl_tools", "toolrl_tool")},
    "unmarked": {"plugin": GOOD.replace("@hookimpl", "")},
    "asynchronous": {"plugin": GOOD.replace("def toolrl", "async def toolrl")},
    "object_giver": {"plugin": GOOD.replace('yield Component("demo_tool", ', "yield dict(target=")},
    "failing_hook": {"plugin": GOOD + "    raise ValueError('boom in the hook')\n"},
}
"""Plugins that can't be used, each for another reason."""


@pytest.fixture
def troubled_site(site: FakeSite) -> FakeSite:
    """One good plugin among all kinds of bad ones, and two of one name."""
    site.add("good", GOOD, modules={"tool": "def build(options, context): ...\n"})
    for name, settings in TROUBLE.items():
        site.add(name, **settings)  # type: ignore[arg-type]
    for distribution in ("toolrl-plugin-twin-one", "toolrl-plugin-twin-two"):
        site.add("twin", GOOD, distribution=distribution)
    return site
