"""A newcomer's way: a config by `toolrl init` with own data and an own tool, ten steps, the list of runs, an export."""

from __future__ import annotations

import json
from typing import Any

TOOL = '''
def calculator(expression: str) -> str:
    """Add two numbers, such as `3 + 4`."""
    return str(sum(map(int, expression.split("+"))))
'''


def test_init_train_runs_export(here: Any, own_place: Any) -> None:
    rows = [{"question": f"What is {a} + {b}?", "answer": a + b} for a in range(2, 9) for b in range(2, 9)]
    for name, part in {"train.jsonl": rows[:40], "test.jsonl": rows[40:]}.items():
        (own_place.folder / name).write_text("\n".join(map(json.dumps, part)))
    (own_place.folder / "tools.py").write_text(TOOL)
    words = (
        "--model runs/warm --data train.jsonl --eval test.jsonl --tool tools.py:calculator --output first.yaml --yes"
    )
    assert here("init", *words.split(), place=own_place).returncode == 0
    assert here("config", "check", "--strict", "first.yaml", place=own_place).returncode == 0
    done = here("train", "first.yaml", "--json", "--set", "threads=1", place=own_place)
    assert done.returncode == 0, done.stderr
    run = own_place.run("first")
    assert [line.step for line in run.metrics_lines("train")] == list(range(1, 11))
    assert run.metrics_lines("train")[-1].metrics["calls/mean"] > 0.3, "the model calls the tool"
    assert run.metrics_lines("eval")[-1].metrics["accuracy"] > 0.3, "and gets its answers"
    assert run.report_path.is_file()
    assert "first" in {it["name"] for it in here("runs", "--json", place=own_place).json()}
    assert here("export", "runs/first", "exported", place=own_place).returncode == 0
    assert (own_place.folder / "exported" / "model.safetensors").is_file()
