"""`toolrl new-plugin`: writes a plugin's package that installs, passes its tests and can be used from a config.

Templates lie beside this module: `common` for every kind, and a folder a kind with its component, options and tests.
What is written works as it is, and is meant to be changed.
"""

from __future__ import annotations

import argparse
import importlib.resources
import json
import keyword
import re
import shlex
import string
from dataclasses import dataclass
from pathlib import Path

from toolrl.cli.output import UsageError, print_json
from toolrl.kinds import KINDS, Kind
from toolrl.version import __version__

HELP = "write a new plugin's package, tests included"
EXAMPLE = "toolrl new-plugin demo --kind tool"

_PREFIX = "toolrl-plugin-"
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*\Z")


@dataclass(frozen=True)
class Template:
    """The component that is written for a kind."""

    kind: Kind
    summary: str
    target: str
    """A template of the target's name."""
    component: str = "${name}"
    """A template of the component's name."""
    options: bool = True
    requires: str = ""
    """A distribution that the component imports, besides toolrl."""
    named: str = ""
    """Where a kind has several: what `--kind` calls this one."""

    @property
    def module(self) -> str:
        """The module that is written, and the folder of its templates."""
        return self.named or self.kind.singular

    @property
    def label(self) -> str:
        """The component's name in its texts."""
        return self.named or self.kind.label


TEMPLATES: dict[str, Template] = {
    template.module.replace("_", "-"): template
    for template in (
        Template(KINDS["tools"], "Counts the words of a text.", "build"),
        Template(KINDS["parsers"], "JSON calls between <call> tags.", "${cls}Parser", requires="toolrl-common"),
        Template(KINDS["rewards"], "The answer stands in the model's last turn.", "${cls}Reward"),
        Template(KINDS["engines"], "Samples every token equally often.", "${cls}Engine"),
        Template(KINDS["datasets"], "Questions and answers from a file with tabs.", "${cls}Dataset"),
        Template(
            KINDS["chat_formats"],
            "Each message behind its role's name.",
            "${cls}Format",
            requires="toolrl-plugin-chat",
        ),
        Template(KINDS["harnesses"], "Answers calls, then asks for the answer alone.", "${cls}Harness"),
        Template(KINDS["advantages"], "Rewards against their group's median.", "${cls}Advantage"),
        Template(KINDS["policy_losses"], "A soft gate in the place of the clip.", "${cls}Loss"),
        Template(KINDS["observers"], "Writes a metric of each step to a file.", "${cls}Observer"),
        Template(KINDS["commands"], "Counts the lines of files.", "${cls}Command", component="count", options=False),
        Template(KINDS["tools"], "A game: the model guesses a number.", "${cls}Environment", named="environment"),
    )
}
"""By what `--kind` calls them."""

_COMMON = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "gitignore": ".gitignore",
    "init.py": "src/${package}/__init__.py",
    "plugin.py": "src/${package}/plugin.py",
}
_OF_KIND = {
    "component.py": "src/${package}/${module}.py",
    "options.py": "src/${package}/options.py",
    "test_contract.py": "tests/test_contract.py",
    "test_component.py": "tests/test_${ident}.py",
}
"""Template to where it is written."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the plugin's name: lower-case letters, digits, '-' and '_'")
    parser.add_argument("--kind", required=True, choices=list(TEMPLATES), help="what it gives to toolrl")
    parser.add_argument("--dir", default=".", type=Path, help="where to make its folder (default: here)")
    parser.add_argument("--json", action="store_true", help="print the folder and its files as JSON")


def run(args: argparse.Namespace) -> int:
    from toolrl.cli.main import COMMANDS

    folder = args.dir / f"{_PREFIX}{check_name(args.name)}"
    if args.kind == "command" and args.name in COMMANDS:
        raise UsageError(f"`toolrl {args.name}` is a command of core's, which would hide the plugin's")
    written = write_plugin(folder, args.name, args.kind)
    if args.json:
        print_json({"folder": str(folder), "files": [str(path.relative_to(folder)) for path in written]})
        return 0
    print(f"wrote {len(written)} files to {folder} (kind: {args.kind}). Next:\n")
    print("  pip install", *needed_folders(args.kind), f"-e '{folder}[test]'")
    print(f"  pytest {folder}")
    print("  toolrl list-plugins")
    return 0


def needed_folders(kind: str) -> list[str]:
    """Folders of packages that the plugin's tests need and that aren't installed, in the clone that toolrl was
    installed from. Empty without a clone: pip looks in its index then."""
    from toolrl.plugins.discovery import CORE, installed_version, source_folder

    core = source_folder(CORE)
    wanted = [it for it in ("toolrl-testing", TEMPLATES[kind].requires) if it and installed_version(it) is None]
    folders = [Path(core or "").parent / "plugins" / re.sub(r"^toolrl-(plugin-)?", "", it) for it in wanted]
    return [shlex.quote(str(folder)) for folder in folders if core is not None and folder.is_dir()]


def check_name(name: str) -> str:
    """The name, if a plugin can have it. Raises UsageError."""
    if not _NAME.match(name):
        what = "use lower-case letters and digits, with single '-' or '_' between them"
        raise UsageError(f"plugin name {name!r}: {what}")
    if keyword.iskeyword(name) or name in ("builtin", "contract"):
        raise UsageError(f"plugin name {name!r} has a meaning of its own", hint=f"Try 'my-{name}'.")
    return name


def write_plugin(folder: Path, name: str, kind: str) -> list[Path]:
    """Write a plugin's package into a folder that doesn't exist yet; the files. Raises UsageError."""
    values = _values(check_name(name), kind)
    templates = importlib.resources.files("toolrl.cli") / "templates"
    own = templates / TEMPLATES[kind].module
    values["usage"] = _filled((own / "usage.md.tmpl").read_text(encoding="utf-8"), values)
    sources = {where: templates / "common" / f"{source}.tmpl" for source, where in _COMMON.items()}
    sources |= {where: own / f"{source}.tmpl" for source, where in _OF_KIND.items()}
    texts = {
        _filled(where, values): _filled(source.read_text(encoding="utf-8"), values)
        for where, source in sources.items()
        if source.is_file()
    }
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(
            f"{folder} exists, and nothing is overwritten", hint="Choose another name, or another folder with --dir."
        ) from None
    for where, text in texts.items():
        path = folder / where
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [folder / where for where in texts]


def _values(name: str, kind_name: str) -> dict[str, str]:
    template = TEMPLATES[kind_name]
    ident = name.replace("-", "_")
    major, minor = __version__.split(".")[:2]
    versions = f">={major}.{minor},<{major}.{int(minor) + 1}"
    requires = [f"{distribution}{versions}" for distribution in ("toolrl", template.requires) if distribution]
    values = {
        "name": name,
        "ident": ident,
        "distribution": f"{_PREFIX}{name.replace('_', '-')}",
        "package": f"toolrl_plugin_{ident}",
        "cls": "".join(part.capitalize() for part in ident.split("_")),
        "label": template.label,
        "hook": template.kind.hook,
        "protocol": template.kind.protocols[0],
        "module": template.module,
        "summary": template.summary,
        "versions": versions,
        "requires": json.dumps(requires),
    }
    values["component"] = _filled(template.component, values)
    values["target"] = _filled(template.target, values)
    options = f'        options="{values["package"]}.options:{values["cls"]}Options",\n' if template.options else ""
    values["options_line"] = options
    return values


def _filled(template: str, values: dict[str, str]) -> str:
    return string.Template(template).substitute(values)
