"""How the local server compiles and runs each language.

The commands are those that Sandbox Fusion documents. Compiling gives one file, which is carried over to where the
program runs. A language is there when its tool is on this machine and a small program of it runs in the sandbox.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

_RUN_TEST = ("./test",)


@dataclass(frozen=True, slots=True)
class Language:
    """One language. `{tool}` in a command is the path of its tool."""

    tool: str
    """The program that has to be on the machine; its path once it was found."""
    source: str
    """The name of the file that the code is written to."""
    run: tuple[str, ...]
    probe: str
    """A program that ends with exit code 0 where the language works."""
    compile: tuple[str, ...] | None = None
    artifact: str | None = None
    """The file that compiling gives."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that its tool needs."""

    def command(self, template: tuple[str, ...]) -> list[str]:
        """A command with the tool's path in it."""
        return [self.tool if part == "{tool}" else part for part in template]


LANGUAGES: dict[str, Language] = {
    "python": Language("python", "main.py", ("{tool}", "main.py"), "print(6 * 7)"),
    "pytest": Language(
        "python", "test_main.py", ("{tool}", "-m", "pytest", "-p", "no:cacheprovider", "test_main.py"),
        "def test(): pass", env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    ),
    "cpp": Language(
        "g++", "main.cpp", _RUN_TEST, "int main() { return 0; }",
        ("{tool}", "-std=c++17", "main.cpp", "-o", "test", "-lpthread"), "test",
    ),
    "nodejs": Language("node", "main.js", ("{tool}", "main.js"), "console.log(42)"),
    "bash": Language("bash", "main.sh", ("{tool}", "main.sh"), "echo 42"),
}  # fmt: skip


def installed(python: str, names: list[str] | None = None) -> dict[str, Language]:
    """The languages, or those of `names`, whose tools are found; `python` is the interpreter of Python programs."""
    found: dict[str, Language] = {}
    for name in LANGUAGES if names is None else names:
        language = LANGUAGES[name]
        tool = python if language.tool == "python" else shutil.which(language.tool)
        if tool is not None:
            found[name] = replace(language, tool=tool)
    return found
