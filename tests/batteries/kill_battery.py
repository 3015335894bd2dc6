"""Kills a training run with SIGKILL at random moments, resumes it each time, and compares what comes of it, bit for
bit, with an uninterrupted run.

    python tests/batteries/kill_battery.py [--kills 20] [--seed 0] [--dir runs/kills] [--lora]

The config is deterministic: episodes with calls, two updates a step, a KL term, evaluations, a checkpoint each step. A
run that has ended before its kill counts as finished, and a new one is begun, until there were as many kills as asked
for. Compared are the weights of the last checkpoint, the optimizer's state, every metric but those of the clock, and
the tokens of every episode. Exit status 1 where anything differs.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
STEPS = 5
CONFIG: dict[str, Any] = {
    "deterministic": True,
    "threads": 1,
    "environments": {
        # The model is new and right by chance only: what a call costs is what it learns from.
        "default": {"tools": ["calculator"], "rewards": ["math"], "max_turns": 2, "call_cost": 0.1}
    },
    "data": {
        "train": {"use": "arithmetic", "options": {"size": 64}},
        "eval": {"use": "arithmetic", "options": {"size": 8, "seed": 1}},
    },
    "rollout": {"max_turn_tokens": 48, "concurrency": 12},
    "algorithm": {"preset": "grpo", "group_size": 4, "kl_coef": 0.05},
    "trainer": {
        "steps": STEPS, "prompts_per_step": 6, "updates_per_step": 2, "learning_rate": 1.0e-3, "save_every": 1,
    },
    "evaluation": {"every": 2},
    "observers": [],
}  # fmt: skip
CLOCKED = ("time/", "speed/", "tool/")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=Path("runs/kills"))
    parser.add_argument("--lora", action="store_true", help="train an adapter, and a critic")
    args = parser.parse_args()
    facts = battery(args.dir.resolve(), args.kills, args.seed, {"rank": 8} if args.lora else None)
    print(json.dumps(facts, indent=2))
    return 0 if facts["different"] == 0 else 1


def battery(folder: Path, kills: int, seed: int, lora: dict[str, int] | None = None) -> dict[str, Any]:
    """Kill so often, and count what differs. `lora`: as `model.lora`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make = ROOT / "docs" / "examples" / "quickstart" / "make_model.py"
    subprocess.run([sys.executable, str(make), str(folder / "model")], check=True, stdout=subprocess.DEVNULL)
    model = {"path": str(folder / "model"), "lora": lora}
    config = {**CONFIG, "model": model, "run": {"dir": str(folder), "name": "whole"}}
    if lora:
        config["algorithm"] = {**CONFIG["algorithm"], "preset": "ppo"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    started = time.monotonic()
    assert train(folder, "whole").wait() == 0, "the uninterrupted run must end"
    whole = time.monotonic() - started
    chance = random.Random(seed)
    killed: Counter[str] = Counter()
    runs = different = 0
    problems: list[str] = []
    while sum(killed.values()) < kills:
        name = f"run-{runs}"
        runs += 1
        while True:
            process = train(folder, name)
            try:
                # From the start-up to the last moment: a whole run's time, whatever is left of it to do.
                status = process.wait(timeout=chance.uniform(0.0, whole) if sum(killed.values()) < kills else None)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                killed[moment(folder / name)] += 1
                continue
            assert status == 0, (folder / f"{name}.log").read_text()[-2000:]
            break
        found = differences(folder / "whole", folder / name)
        problems += [f"{name}: {line}" for line in found]
        different += bool(found)
    return {"kills": sum(killed.values()), "after_step": dict(sorted(killed.items())), "runs": runs,
            "different": different, "problems": problems[:20], "seconds_of_a_run": round(whole, 1)}  # fmt: skip


def train(folder: Path, name: str) -> subprocess.Popen[bytes]:
    """Start the run, or go on with it where it has begun."""
    command = [sys.executable, "-m", "toolrl", "train", str(folder / "config.yaml"), "--set", f"run.name={name}"]
    if (folder / name / "config.yaml").exists():
        command.append("--resume")
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def moment(run: Path) -> str:
    """How many checkpoints it had when it was killed."""
    found = sorted(path.name for path in run.glob("checkpoints/step-*"))
    return found[-1] if found else "none"


def differences(one: Path, other: Path) -> list[str]:
    """What isn't the same in two runs."""
    import torch
    from safetensors.torch import load_file

    last = f"checkpoints/step-{STEPS:06d}"
    (file,) = (path.name for path in (one / last).glob("*model.safetensors"))
    first, second = (load_file(run / last / file) for run in (one, other))
    found = [f"weight {name}" for name in first if not first[name].equal(second[name])]
    states = [torch.load(run / last / "trainer" / "state.pt", weights_only=True) for run in (one, other)]
    if not same(states[0], states[1]):
        found.append("the optimizer's state or the random generators")
    first, second = lines(one), lines(other)
    found += [f"metrics of {key}" for key in first.keys() | second.keys() if first.get(key) != second.get(key)]
    if tokens(one) != tokens(other):
        found.append("the tokens of an episode")
    return found


def same(one: Any, other: Any) -> bool:
    """Equal through and through, tensors bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one.equal(other)) if hasattr(one, "equal") else bool(one == other)


def lines(run: Path) -> dict[tuple[int, str], dict[str, Any]]:
    """Metrics by step and kind, without those of the clock."""
    found = {}
    for text in (run / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        rest = {name: value for name, value in line.items() if name != "time" and not name.startswith(CLOCKED)}
        found[line["step"], line["kind"]] = rest
    return found


def tokens(run: Path) -> dict[str, tuple[int, ...]]:
    """Of every episode."""
    from toolrl.runs.folder import RunFolder

    return {f"{item.kind} {item.episode.id}": item.episode.ids for item in RunFolder.open(run).episodes()}


if __name__ == "__main__":
    sys.exit(main())
