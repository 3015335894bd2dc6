"""What is published: the wheels of core and of every plugin, and a plugin of another author."""

from __future__ import annotations

import ast
import email
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import toolrl

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [ROOT / "core", *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None or importlib.util.find_spec("pip") is None,
    reason="hatchling and pip build the wheels: pip install hatchling pip",
)


def project(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return facts


PLUGINS = [folder for folder in PACKAGES[1:] if "toolrl.plugins" in project(folder).get("entry-points", {})]


def pip(*arguments: str) -> None:
    """pip, with nothing from an index."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments, "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


class Wheel:
    """A built wheel, opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with zipfile.ZipFile(path) as archive:
            self.files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}

    def info(self, name: str) -> str:
        """A file of its dist-info."""
        (found,) = (data for path, data in self.files.items() if path.endswith(f".dist-info/{name}"))
        return found.decode("utf-8")

    @property
    def metadata(self) -> Message:
        return email.message_from_string(self.info("METADATA"))


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Wheel]:
    """The wheels by the name of the folder that each was built from; TOOLRL_WHEELS names a folder that has them."""
    folder = Path(os.environ.get("TOOLRL_WHEELS") or tmp_path_factory.mktemp("wheels"))
    if not os.environ.get("TOOLRL_WHEELS"):
        pip("wheel", "--no-build-isolation", "-w", str(folder), *map(str, PACKAGES))
    built = {path.name.split("-")[0]: Wheel(path) for path in folder.glob("*.whl")}
    return {package.name: built[project(package)["name"].replace("-", "_")] for package in PACKAGES}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_wheel_holds_its_package_and_nothing_else(package: Path, wheels: dict[str, Wheel]) -> None:
    source = package / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in wheels[package.name].files if ".dist-info/" not in name}
    assert held == expected
    (name,) = {name.split("/")[0] for name in held}
    assert f"{name}/py.typed" in held, "type checkers need it"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_wheel_says_what_it_is(package: Path, wheels: dict[str, Wheel]) -> None:
    wheel = wheels[package.name]
    metadata = wheel.metadata
    assert metadata["Version"] == toolrl.__version__, "all packages are released with one version"
    assert not [need for need in metadata.get_all("Requires-Dist", []) if _leaves_out_this_version(need)]
    assert not (package / "LICENSE").is_symlink(), "a link leads out of an sdist: copy the file"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert wheel.info("licenses/LICENSE") == (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert str(metadata.get_payload()).strip() == (package / "README.md").read_text(encoding="utf-8").strip()


def _leaves_out_this_version(need: str) -> bool:
    requirement = Requirement(need)
    return requirement.name.startswith("toolrl") and not requirement.specifier.contains(toolrl.__version__)


@pytest.mark.parametrize("package", PLUGINS, ids=lambda package: package.name)
def test_a_plugin_is_found_by_its_entry_point_and_fits_core(package: Path, wheels: dict[str, Wheel]) -> None:
    wheel, name = wheels[package.name], package.name
    module = f"toolrl_plugin_{name.replace('-', '_')}.plugin"
    assert wheel.metadata["Name"] == f"toolrl-plugin-{name}"
    assert wheel.info("entry_points.txt").split() == ["[toolrl.plugins]", name, "=", module]
    assert f"{module.replace('.', '/')}.py" in wheel.files
    assert "toolrl<0.2,>=0.1" in wheel.metadata.get_all("Requires-Dist", [])
    assert f"## {wheel.metadata['Version']}" in (package / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", PLUGINS, ids=lambda package: package.name)
def test_a_plugin_requires_the_plugins_that_it_imports(package: Path) -> None:
    facts = project(package)
    groups = [facts["dependencies"], *facts.get("optional-dependencies", {}).values()]
    declared = {re.split(r"[^\w-]", need)[0].replace("-", "_") for group in groups for need in group}
    own = {path.name for path in (package / "src").iterdir()}
    imported = {
        module.partition(".")[0]
        for path in (package / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for module in ([node.module or ""] if isinstance(node, ast.ImportFrom) else
                       [it.name for it in node.names] if isinstance(node, ast.Import) else [])
    }  # fmt: skip
    assert {name for name in imported if name.startswith("toolrl_")} - own <= declared


def test_the_wheels_work_where_the_sources_are_not(wheels: dict[str, Wheel], tmp_path: Path) -> None:
    """Installed into a folder of its own, which stands before everything else; run from an empty one."""
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip("install", "--target", str(site), *(str(wheel.path) for wheel in wheels.values()))
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("-c", "import toolrl; print(toolrl.__file__)").strip() == str(site / "toolrl" / "__init__.py")

    listed = run("-m", "toolrl", "list-plugins", "--json")
    for package in PLUGINS:
        assert f'"toolrl-plugin-{package.name}"' in listed
    assert '"broken"' not in listed
    assert (site / "bin" / "toolrl").is_file()
    run("-m", "toolrl", "new-plugin", "demo", "--kind", "parser")
    assert (elsewhere / "toolrl-plugin-demo" / "pyproject.toml").is_file()


# A plugin of another author.


def test_a_new_plugin_goes_from_its_template_into_a_run(
    plugin_site: Any, scripted: Any, own_place: Any, here: Any
) -> None:
    """Written by `toolrl new-plugin`, built, installed, tested, and called by an episode; core is as it was."""
    place = own_place.folder
    assert here("new-plugin", "demo", "--kind", "tool", place=own_place).returncode == 0
    folder = place / "toolrl-plugin-demo"
    pip("wheel", "--no-build-isolation", "-w", str(place / "dist"), str(folder))
    (wheel,) = (place / "dist").glob("*.whl")
    pip("install", "--target", str(plugin_site.folder), str(wheel))

    environment = {**os.environ, "PYTHONPATH": str(plugin_site.folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    tested = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout

    call = '<tool_call>{"name": "demo", "arguments": {"text": "one two three"}}</tool_call>'
    scripted(place, {"text": call}, {"text": "That was it."})
    tools = [{"use": "demo", "options": {"max_length": 100}}]
    config = own_place.config({"environments": {"default": {"tools": tools}}, "engine": "script"})
    done = here("rollout", config, "--tasks", "1", "--episodes", "2", "--json", site=plugin_site, place=own_place)
    assert done.returncode == 0, done.stderr
    assert done.json()["calls/success"] == 1.0
    for item in own_place.run("grpo-rollout").episodes():
        assert [(record.call.name, record.result.text) for record in item.episode.calls] == [("demo", "3")]
        assert item.episode.final_text == "That was it."
