"""What is wrong with a run before anything is loaded: the commands that start one say so without importing torch, and
`toolrl config check` says it too."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

COMMANDS = ("train", "eval", "rollout", "sft")


def whole_model(folder: Path) -> Path:
    """A folder with everything that a model's has, as far as can be seen without torch."""
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    (folder / "tokenizer.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    return folder


@pytest.fixture
def started(full_site: Any, config_file: Path, tmp_path: Path) -> Any:
    """A command on the config, where torch can't be imported, in a folder with a model and a row of data."""
    for name in ("torch", "transformers"):
        (full_site.folder / f"{name}.py").write_text("raise SystemExit('a heavy library is imported')")
    whole_model(tmp_path / "tiny")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "2+2"}\n')
    (tmp_path / "table.csv").write_text("prompt\n2+2\n")
    rows = f"{{use: jsonl, options: {{path: {tmp_path / 'rows.jsonl'}}}}}"
    messages = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]
    (tmp_path / "shown.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    shown = rows.replace("rows.jsonl", "shown.jsonl")
    text = config_file.read_text() + f"data: {{train: {rows}, eval: {rows}}}\nsft: {{data: {shown}}}\n"
    config_file.write_text(text)

    def run(command: Sequence[str], *overrides: str, **env: str) -> subprocess.CompletedProcess[str]:
        words = [word for override in overrides for word in ("--set", override)]
        env = {
            "TOKEN": "12345",
            "HF_HOME": str(tmp_path / "hub"),
            "HF_ENDPOINT": "http://127.0.0.1:9",
            "HF_HUB_OFFLINE": "0",
            **env,
        }
        done: subprocess.CompletedProcess[str] = full_site.run(
            *command, str(config_file), *words, env=env, cwd=tmp_path
        )
        return done

    return run


def test_a_run_without_such_a_mistake_gets_as_far_as_torch(started: Any) -> None:
    pytest.importorskip("toolrl_plugin_torch", reason="what trains")
    for command in COMMANDS:
        assert "a heavy library is imported" in started([command]).stderr


MISTAKES = {
    "model.path=nowhere/of/this": "there is no folder 'nowhere/of/this'",
    "model.path=owner/name": "'owner/name' is no folder here and isn't in the Hub's cache",
    "observers=[tensorboard]": "needs the package tensorboard",
    "model.lora={}": "model.lora: needs peft",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_a_file_or_package_that_is_not_there_stops_every_command(started: Any, full_site: Any, override: str) -> None:
    pytest.importorskip("toolrl_plugin_torch" if override.startswith("model.") else "toolrl_plugin_report")
    if "owner" in override:
        pytest.importorskip("huggingface_hub")
    (full_site.folder / "sitecustomize.py").write_text(HIDDEN)
    for command in COMMANDS if override.startswith("model.path") else COMMANDS[:1]:
        done = started([command], override)
        assert done.returncode == 1
        assert MISTAKES[override] in done.stderr
        assert done.stderr.startswith("error: ")
        assert "Retrying" not in done.stderr
    checked = started(["config", "check", "--strict"], override)
    assert f"a run is refused here: {override.partition('=')[0]}" in checked.stdout
    assert MISTAKES[override] in checked.stdout
    assert checked.returncode == 1


HIDDEN = """
import importlib.util
found = importlib.util.find_spec
# Whether or not they are installed.
importlib.util.find_spec = lambda name, *rest: None if name in ("tensorboard", "peft") else found(name, *rest)
"""


@pytest.mark.parametrize("read_only", ["runs", "runs/run", "runs/run/checkpoints", "tiny/model.safetensors"])
def test_what_this_user_may_not_write_or_read_is_found_before_torch(
    started: Any, full_site: Any, config_file: Path, tmp_path: Path, read_only: str
) -> None:
    if "tiny" in read_only:
        pytest.importorskip("toolrl_plugin_torch", reason="what trains")
    prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]  # else root may everything
    if os.geteuid() != 0:
        prefix = []
    elif shutil.which(prefix[0]) is None:
        pytest.skip("setpriv isn't installed")
    (tmp_path / "runs" / "run" / "checkpoints" / "step-000001").mkdir(parents=True)
    (tmp_path / "runs" / "run" / "config.yaml").write_text("{}")
    if read_only == "runs":
        shutil.rmtree(tmp_path / "runs" / "run")
    (tmp_path / read_only).chmod(0o555 if "runs" in read_only else 0o000)
    command = ("-m", "toolrl", "train", str(config_file), "--resume-if-exists")
    done = full_site.python(*command, env={"TOKEN": "12345"}, cwd=tmp_path, prefix=prefix)
    (tmp_path / read_only).chmod(0o755)
    said = "the run folder can't be written: " if "runs" in read_only else "it can't be read: Permission denied"
    assert said in done.stderr
    assert read_only in done.stderr or "tiny" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_in_the_hubs_cache_needs_no_hub(started: Any, tmp_path: Path) -> None:
    pytest.importorskip("toolrl_plugin_torch", reason="what trains")
    pytest.importorskip("huggingface_hub")
    repo = tmp_path / "hub" / "hub" / "models--owner--name"
    (repo / "snapshots" / "abc").mkdir(parents=True)
    (repo / "snapshots" / "abc" / "config.json").write_text("{}")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("abc")
    done = started(["train"], "model.path=owner/name")
    assert "a heavy library is imported" in done.stderr
    assert "owner/name comes from its cache" in done.stderr


def test_all_rows_are_read_on_demand(started: Any, tmp_path: Path) -> None:
    assert started(["config", "check", "--data"], "sft=null").returncode == 0
    good = '{"prompt": "2+2"}'
    bad = [
        '{"prompt": "2+',
        "[]",
        "{}",
        '{"prompt": 5}',
        '{"prompt": "x", "environment": "moon"}',
        '{"prompt": "x", "deep": ' + "[" * 200 + "]" * 200 + "}",
        '{"prompt": "x", "deep": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"prompt": "x", "tools_kwargs": "' + "[" * 100_000 + '"}',
        '{"prompt": "x", "n": ' + "9" * 5000 + "}",
    ]
    lines = [good, "", *(line for one in bad for line in (one, good)), *bad[:1] * 20]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    done = started(["config", "check", "--data"], "data.eval=null", "sft=null")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"data.train: {len(bad) + 20} of {len(lines) - 1} rows are bad:" in done.stderr
    for number, _ in enumerate(bad):
        assert f"{tmp_path / 'rows.jsonl'}:{3 + 2 * number}: " in done.stderr
    assert f"and {len(bad)} more" in done.stderr
    skipped = started(["config", "check", "--data"], "data.eval=null", "sft=null", "data.bad_rows=skip")
    assert skipped.returncode == 0
    assert f"{len(bad) + 20} of {len(lines) - 1} rows are left out" in skipped.stderr
    (tmp_path / "rows.jsonl").write_text('{"prompt": "café"}\n', encoding="latin-1")
    assert "Save it as UTF-8, for example: iconv" in started(["config", "check", "--data"]).stderr
    (tmp_path / "rows.jsonl").write_text("[]")
    assert started(["config", "check", "--data"], "data.bad_rows=skip").returncode == 1


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("trainer.keep_best=acuracy", "evaluations give no 'acuracy'. Did you mean 'accuracy'?"),
        ("trainer.keep_best=eval/rewards/mean", "Did you mean 'reward/mean'?"),
        ("trainer.keep_best=reward/fromat/mean", "Did you mean 'reward/format/mean'?"),
        ("trainer.keep_best=pass@2", "Did you mean 'pass@1'?"),
        ("trainer.keep_best=reward/format/mean", None),
        ("trainer.keep_best=tool/counter/hits", None),
        ("trainer.keep_best=eval/avg@1", None),
    ],
)
def test_the_metric_of_the_best_checkpoint_is_suggested(started: Any, override: str, says: str | None) -> None:
    done = started(["config", "check"], override, "environments.default.rewards=[format]", "evaluation.every=2")
    assert done.returncode == 0
    assert ("evaluations give no" in done.stdout) == (says is not None)
    assert (says or "ok") in done.stdout


def test_the_first_rows_are_read_on_demand(started: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "2+2"}\n')
    done = started(["config", "check", "--import"])
    assert done.returncode == 1
    for place in ("data.train", "data.eval", "environments.default.tools[0]"):  # All mistakes at once.
        assert f"{place}: " in done.stderr


def test_a_plugin_without_what_it_requires_stops_every_command(started: Any, full_site: Any) -> None:
    (metadata,) = full_site.folder.glob("toolrl_plugin_full*/METADATA")
    metadata.write_text(metadata.read_text().rstrip("\n") + "\nRequires-Dist: pytest<1\n")
    done = started(["train"])
    assert done.returncode == 1
    assert "environments.default.tools[0]: the plugin 'full' is unmet" in done.stderr
    checked = started(["config", "check", "--strict"])
    assert checked.returncode == 1
    assert 'pip install "pytest<1"' in checked.stdout


def test_a_model_without_a_chat_template_stops_every_command(started: Any, tmp_path: Path) -> None:
    pytest.importorskip("toolrl_plugin_chat")
    pytest.importorskip("toolrl_plugin_torch", reason="what trains")
    (tmp_path / "tiny" / "tokenizer_config.json").write_text("{}")
    template = "environments.default.chat_format=template"
    for command in COMMANDS:
        done = started([command], template)
        assert "environments.default.chat_format: " in done.stderr
        assert "no chat template" in done.stderr
    for name, text in {
        "tokenizer_config.json": '{"chat_template": "{{ 1 }}"}',
        "chat_template.jinja": "{{ 1 }}",
    }.items():
        (tmp_path / "tiny" / "tokenizer_config.json").write_text("{}")
        (tmp_path / "tiny" / name).write_text(text)
        assert "no chat template" not in started(["config", "check"], template).stdout
        (tmp_path / "tiny" / name).unlink()


def test_targets_are_imported_on_demand(started: Any, full_site: Any) -> None:
    done = started(["config", "check", "--import"], "environments.default.tools=[]")
    assert done.returncode == 0, done.stderr
    done = started(["config", "check", "--import"])  # What the plugin gives is no toolset.
    assert done.returncode == 1
    assert "environments.default.tools[0]: " in done.stderr
    (full_site.folder / "toolrl_plugin_full" / "thing.py").write_text(
        "from pydantic import BaseModel\nclass Options(BaseModel):\n    token: str = ''\nclass Thing: 1 / 0\n"
    )
    assert started(["config", "check"]).returncode == 1  # Its options are in the same module.
