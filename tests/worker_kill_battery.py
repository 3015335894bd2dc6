"""Kills rollout workers of one training run by SIGKILL at random moments, and counts what comes of it.

    python tests/worker_kill_battery.py [--kills 10] [--staleness 1] [--seed 0] [--dir runs/worker-kills]
                                        [--json OUT.json]

The run has two workers on a Ray cluster that is started for it. A worker is killed, chosen by chance, at a moment that
is chosen by chance, whatever it does then: start, sample, take weights, wait; when all kills are done the run goes on
to its end. Exit status 1 where the run doesn't end well, an episode is missing or stands there twice, tokens are of
other versions than they may be, or a worker takes more than 30 seconds to come back.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
STEPS_PER_KILL, PROMPTS, GROUP = 60, 4, 4
LONGEST_RECOVERY = 30.0
CONFIG: dict[str, Any] = {
    "threads": 1,
    "environments": {"default": {"tools": ["calculator"], "rewards": ["math"], "max_turns": 2, "call_cost": 0.1}},
    "data": {"train": {"use": "arithmetic", "options": {"size": 64}}},
    "rollout": {"max_turn_tokens": 48, "concurrency": 8},
    "algorithm": {"preset": "grpo", "group_size": GROUP, "importance": {}},
    "trainer": {"prompts_per_step": PROMPTS, "learning_rate": 1.0e-3},
    "observers": [],
    "cluster": {"rollout_workers": 2, "worker_cpus": 0, "worker_restarts": 20},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--staleness", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=Path("runs/worker-kills"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    facts = battery(args.dir.resolve(), args.kills, args.staleness, args.seed)
    print(json.dumps(facts, indent=2))
    if args.json:
        args.json.write_text(json.dumps(facts, indent=2) + "\n")
    return 1 if facts["problems"] else 0


def battery(folder: Path, kills: int, staleness: int, seed: int) -> dict[str, Any]:
    """Kill so often, then let the run end."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make = ROOT / "docs" / "examples" / "quickstart" / "make_model.py"
    subprocess.run([sys.executable, str(make), str(folder / "model")], check=True, stdout=subprocess.DEVNULL)
    config = {**CONFIG, "model": {"path": str(folder / "model")}, "run": {"dir": str(folder), "name": "run"}}
    config["rollout"] = {**CONFIG["rollout"], "max_staleness": staleness}
    config["trainer"] = {**CONFIG["trainer"], "steps": kills * STEPS_PER_KILL}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    begin = time.monotonic()
    with (folder / "run.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "toolrl", "train", str(folder / "config.yaml")], stdout=log, stderr=log
        )
    try:
        recoveries, states = _kill(process, folder / "run", kills, random.Random(seed))
        status = process.wait()
    finally:
        process.kill()
        process.wait()
    problems = [f"the run ended with status {status}"] if status else []
    if len(states) < kills:
        problems.append(f"the run was over after {len(states)} kills")
    problems += [f"a worker came back after {it:.1f} s" for it in recoveries if it > LONGEST_RECOVERY]
    episodes = kills * STEPS_PER_KILL * PROMPTS * GROUP
    restarted = _look(folder / "run", staleness, episodes, problems)
    return {
        "kills": len(states),
        "while": dict(Counter(states)),
        "seconds_to_recover": {
            "median": round(statistics.median(recoveries), 1) if recoveries else None,
            "longest": round(max(recoveries, default=0.0), 1),
        },
        "restarted_workers": restarted[0],
        "restarted_groups": restarted[1],
        "episodes": episodes,
        "seconds": round(time.monotonic() - begin),
        "problems": problems,
    }


def _kill(process: Any, run: Path, kills: int, chance: random.Random) -> tuple[list[float], list[str]]:
    """Seconds until another worker was ready in the place of each one, and what the killed ones were doing."""
    recoveries: list[float] = []
    states: list[str] = []
    while len(states) < kills and process.poll() is None:
        if _workers(run) is None:
            time.sleep(0.1)
            continue
        time.sleep(chance.uniform(0.0, 3.0))
        number = chance.randrange(2)
        pid, killed = _kill_one(run, number, states), time.monotonic()
        if len(states) < kills and chance.random() < 0.3:
            # Its follower, too, while it starts.
            while _process(run, number) == pid and process.poll() is None:
                time.sleep(0.1)
            time.sleep(chance.uniform(0.0, 3.0))
            pid, killed = _kill_one(run, number, states), time.monotonic()
        while process.poll() is None:
            now = (_workers(run) or {}).get(number, {})
            if now.get("state") == "ready" and now.get("pid") not in (pid, None):
                recoveries.append(time.monotonic() - killed)
                break
            time.sleep(0.1)
    return recoveries, states


def _kill_one(run: Path, number: int, states: list[str]) -> int:
    """Kill a worker, and note what it was doing; its process."""
    worker = (_workers(run) or {}).get(number, {})
    pid = _process(run, number)
    os.kill(pid, signal.SIGKILL)
    starting = worker.get("state") != "ready" or worker.get("pid") != pid
    states.append("starting" if starting else "sampling" if worker.get("running") else "between episodes")
    return pid


def _workers(run: Path) -> dict[int, dict[str, Any]] | None:
    """What the run says of each worker, None before it says anything."""
    try:
        facts = json.loads((run / ".status.json").read_text())
    except (FileNotFoundError, ValueError):
        return None
    return {it["worker"]: it for it in facts["workers"]}


def _process(run: Path, number: int) -> int:
    """The process that wrote the worker's log last."""
    text = (run / "workers" / f"worker-{number}.log").read_text()
    return int(text.rpartition("starts: process ")[2].split()[0])


def _look(run: Path, staleness: int, episodes: int, problems: list[str]) -> tuple[int, int]:
    """Note what isn't as it should be; the workers and groups that the metrics count as restarted."""
    from toolrl.report.folder import RunFolder

    folder = RunFolder.open(run)
    seen = Counter(stored.episode.id for stored in folder.episodes(kind="train"))
    if (total := sum(seen.values())) != episodes:
        problems.append(f"{total} episodes instead of {episodes}")
    problems += [f"{name} stands there {count} times" for name, count in seen.items() if count > 1]
    lines = folder.metrics_lines("train")
    oldest = max((line.metrics.get("staleness/max", 0.0) for line in lines), default=0.0)
    if oldest > staleness:
        problems.append(f"a token was {oldest:g} versions old")
    workers, groups = (
        int(sum(line.metrics[f"cluster/restarted_{what}"] for line in lines)) for what in ("workers", "groups")
    )
    return workers, groups


if __name__ == "__main__":
    sys.exit(main())
