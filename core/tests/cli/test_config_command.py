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


def test_show_prints_all_values_and_no_secret(full_site: Any, config_file: Path) -> None:
    done = full_site.run("config", "show", str(config_file), "--set", "seed=11", env={"TOKEN": SECRET})
    shown = yaml.safe_load(done.stdout)
    assert shown["seed"] == 11
    assert shown["trainer"]["steps"] == 100
    assert shown["environments"]["default"]["tools"][0]["options"] == {"token": "${TOKEN}"}
    assert SECRET not in done.stdout + done.stderr
    done = full_site.run("config", "show", str(config_file), "--json", env={"TOKEN": SECRET})
    assert json.loads(done.stdout)["engine"] == {"use": "dice", "options": {}}


def test_the_schema_knows_the_installed_components(full_site: Any, config_file: Path) -> None:
    done = full_site.run("config", "schema")
    schema = json.loads(done.stdout)
    validator = jsonschema.Draft202012Validator(schema)
    config = yaml.safe_load(config_file.read_text())
    assert validator.is_valid(config)
    config["environments"]["default"]["tools"][0]["options"]["precison"] = 3
    assert not validator.is_valid(config)
