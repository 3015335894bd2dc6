"""The reference pages hold everything that the code has, and `make.py --check` shows where they don't."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator

import make
import pytest
from doc_pages import ROOT
from pagemaker import cli_page, metrics_page, models, source
from pydantic import BaseModel

from toolrl import hookspecs, protocols
from toolrl.cli.common import PLUGIN_COMMANDS
from toolrl.cli.main import COMMANDS
from toolrl.config.model import Config
from toolrl.tools.policy import PolicyOptions

REFERENCE = ROOT / "docs" / "reference"


def text(page: str) -> str:
    return (REFERENCE / page).read_text(encoding="utf-8")


def test_the_pages_are_what_the_code_gives() -> None:
    found = make.differences()
    assert not found, "\n".join(["Run: python docs/reference/make.py", *found])


def test_the_pages_need_no_torch() -> None:
    script = (
        "import runpy, sys; sys.argv = ['make.py', '--check']\n"
        "try: runpy.run_path('docs/reference/make.py', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'ray', 'vllm'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# What is in the code is on a page, looked for without the page maker's help.


@pytest.mark.parametrize("hook", [name for name in dir(hookspecs) if name.startswith("toolrl_")])
def test_every_hook_is_documented(hook: str) -> None:
    assert f"### {hook}\n" in text("hooks.md")


PROTOCOLS = [name for name, node in vars(protocols).items() if getattr(node, "__module__", "") == protocols.__name__]


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if inspect.isclass(vars(protocols)[name])])
def test_every_protocol_is_documented(name: str) -> None:
    assert f"#### {name}\n" in text("hooks.md")


@pytest.mark.parametrize("command", [*COMMANDS, *PLUGIN_COMMANDS])
def test_every_command_is_documented(command: str) -> None:
    _, found, section = text("cli.md").partition(f"## `toolrl {command}`\n")
    assert found
    section = section.partition("\n## ")[0]
    for action in cli_page.shown(cli_page.command_parser(command)):
        for name in action.option_strings:
            assert name in section


def config_fields(model: type[BaseModel]) -> Iterator[str]:
    """Every field of a model and of the models in it."""
    for name, field in model.model_fields.items():
        yield field.alias or name
        inner = models.section(field.annotation)
        if inner is not None:
            yield from config_fields(inner)


@pytest.mark.parametrize("field", sorted({*config_fields(Config), *config_fields(PolicyOptions)}))
def test_every_config_field_is_documented(field: str) -> None:
    assert f"\n| `{field}` | " in text("config.md")


@pytest.mark.parametrize("metric", sorted(metrics_page.names_in_code()))
def test_every_metric_of_an_update_is_documented(metric: str) -> None:
    assert f"\n| `{metric}` | " in text("metrics.md")


def test_every_metric_of_episodes_is_documented() -> None:
    written = source.module_doc("loop.metrics")
    rows = [line for line in written.splitlines() if line.startswith("    ") and line[4] != " "]
    names = [name for row in rows for name in row[4:33].strip().split(", ")]
    assert {"accuracy", "errors/rate"} < set(names)
    assert [name for name in names if f"`{name}`" not in text("metrics.md")] == []
