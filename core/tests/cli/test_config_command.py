"""`toolrl config`: with plugins in trouble all around, the good ones' configs work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import yaml

SECRET = "s3cret-value-xyz"


def test_check_names_the_components(full_site: Any, config_file: Path) -> None:
    done = full_site.run("config", "check", str(config_file), env={"TOKEN": SECRET})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"{config_file}: ok"
    assert ["tools", "full/counter"] in [line.split() for line in done.stdout.splitlines()]
    done = full_site.run("config", "check", str(config_file), "--json", env={"TOKEN": SECRET})
    facts = json.loads(done.stdout)
    assert facts["ok"] is True
    assert facts["components"]["engines"] == ["full/dice"]


def test_a_data_file_that_is_not_there_is_noted(full_site: Any, config_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    arguments = ["--set", "data.train.use=jsonl", "--set", f"data.train.options.path={path}"]
    done = full_site.run("config", "check", str(config_file), *arguments, env={"TOKEN": SECRET})
    assert done.returncode == 0, done.stderr
    assert f"a run is refused here: data.train.options: no file matches {str(path)!r}" in done.stdout
    path.write_text("{}")
    done = full_site.run("config", "check", str(config_file), *arguments, env={"TOKEN": SECRET})
    assert "data.train.options" not in done.stdout


def test_remarks_on_rows_are_notes(full_site: Any, config_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    row = json.dumps({"messages": [{"role": "user", "content": "2 + 2?", "mood": "good"}]})
    path.write_text(f"{row}\n{row}\n")
    arguments = ["--data", "--set", "data.train.use=jsonl", "--set", f"data.train.options.path={path}"]
    done = full_site.run("config", "check", str(config_file), *arguments, env={"TOKEN": SECRET})
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "mood" in line]
    assert line.startswith(f"note: data.train: {path}:1: 'messages[0].mood' has no effect")
    assert line.endswith("(and 1 more)")
    strict = full_site.run("config", "check", str(config_file), *arguments, "--strict", env={"TOKEN": SECRET})
    assert strict.returncode == 1


def test_show_prints_all_values_and_no_secret(full_site: Any, config_file: Path) -> None:
    done = full_site.run("config", "show", str(config_file), "--set", "seed=11", env={"TOKEN": SECRET})
    shown = yaml.safe_load(done.stdout)
    assert shown["seed"] == 11
    assert shown["trainer"]["steps"] == 100
    assert shown["environments"]["default"]["tools"][0]["options"] == {"token": "${TOKEN}"}
    assert SECRET not in done.stdout + done.stderr
    done = full_site.run("config", "show", str(config_file), "--json", env={"TOKEN": SECRET})
    assert json.loads(done.stdout)["engine"] == {"use": "dice", "options": {}}


TOOLS = """
from toolrl import Component, hookimpl

@hookimpl
def toolrl_tools():
    yield Component("dice", "toolrl_plugin_shown.dice:roll", summary="A die.")
    yield Component("sheet", "toolrl_plugin_shown.dice:Sheet", summary="Differs from task to task.")
"""
DICE = """
from contextlib import asynccontextmanager
from pydantic import Field
from toolrl.tools import tool
from toolrl.types import ToolSpec

@tool
def roll(sides: int = Field(6, ge=2, description="Sides of the die.")) -> int:
    \"\"\"Roll a die.\"\"\"
    return 4

class Sheet:
    def __init__(self, options, context): ...
    async def start(self): ...
    async def stop(self): ...
    @asynccontextmanager
    async def open(self, task, episode):
        if task.id == "row-2":
            raise OSError("no sheet")
        yield Session(task)

class Session:
    def __init__(self, task): self.task = task
    def specs(self): return [ToolSpec(f"read_{self.task.answer}", "Reads.", {"type": "object", "properties": {}})]
"""


def test_show_prints_the_tools_as_the_model_gets_them(full_site: Any, config_file: Path, tmp_path: Path) -> None:
    full_site.add("shown", TOOLS, modules={"dice": DICE})
    (tmp_path / "train.jsonl").write_text('{"id": "row-1", "prompt": "Roll.", "answer": "four"}\n')
    config = yaml.safe_load(config_file.read_text())
    config["environments"]["default"]["tools"] = [{"use": "dice", "as": {"roll": "throw"}}, "sheet"]
    config["data"] = {"train": {"use": "jsonl", "options": {"path": str(tmp_path / "train.jsonl")}}}
    config_file.write_text(yaml.safe_dump(config))
    shown = full_site.run("config", "show", str(config_file), "--tools", "--json")
    assert shown.returncode == 0, shown.stderr
    throw, read = (it["function"] for it in json.loads(shown.stdout)["default"])
    assert (throw["name"], throw["description"], read["name"]) == ("throw", "Roll a die.", "read_four")
    assert throw["parameters"]["properties"]["sides"] == {
        "type": "integer",
        "default": 6,
        "minimum": 2,
        "description": "Sides of the die.",
    }
    text = full_site.run("config", "show", str(config_file), "--tools").stdout
    assert text.splitlines()[0] == "environments.default: 2 tools"
    assert json.loads(text.partition("\n")[2].partition("\n}\n")[0] + "}")["function"] == throw


def test_show_names_the_tools_that_do_not_start(full_site: Any, config_file: Path, tmp_path: Path) -> None:
    full_site.add("shown", TOOLS, modules={"dice": DICE})
    (tmp_path / "train.jsonl").write_text('{"id": "row-2", "prompt": "Roll."}\n')
    config = yaml.safe_load(config_file.read_text())
    config["environments"]["default"]["tools"] = ["sheet"]
    config["data"] = {"train": {"use": "jsonl", "options": {"path": str(tmp_path / "train.jsonl")}}}
    config_file.write_text(yaml.safe_dump(config))
    shown = full_site.run("config", "show", str(config_file), "--tools")
    assert shown.returncode == 1
    assert "environments.default" in shown.stderr
    assert "no sheet" in shown.stderr


def test_the_schema_knows_the_installed_components(full_site: Any, config_file: Path) -> None:
    done = full_site.run("config", "schema")
    schema = json.loads(done.stdout)
    validator = jsonschema.Draft202012Validator(schema)
    config = yaml.safe_load(config_file.read_text())
    assert validator.is_valid(config)
    config["environments"]["default"]["tools"][0]["options"]["precison"] = 3
    assert not validator.is_valid(config)


def test_a_model_given_as_a_text_gets_its_form(full_site: Any, config_file: Path) -> None:
    done = full_site.run("config", "check", str(config_file), "--set", "model=Qwen/Qwen3-0.6B", env={"TOKEN": "12345"})
    assert done.returncode == 1
    assert "model: Input should be a mapping; write `model: {path: Qwen/Qwen3-0.6B}`" in done.stderr


def test_a_plugin_that_only_the_run_had_is_named(full_site: Any, config_file: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "first"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(config_file.read_text().replace("tags", "gone"))
    (run / "plugins.json").write_text('{"plugins": {"full": "1.0", "lost": "0.3"}}')
    for command in (["config", "check"], ["eval"]):
        done = full_site.run(*command, str(run), env={"TOKEN": "12345"})
        assert done.returncode == 1
        assert "plugins that aren't installed here: lost 0.3." in done.stderr
