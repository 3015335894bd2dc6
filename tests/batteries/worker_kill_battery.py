"""Kills processes of one training run by SIGKILL at random moments, and counts what comes of it.

    python tests/batteries/worker_kill_battery.py --kind rollout|trainer|limiter|mcp|node [--kills 10]
        [--seed 0] [--dir runs/worker-kills]

The run has two rollout workers on a Ray cluster that is started for it, and a model that calls a tool. A process of the
kind is killed, chosen by chance, at a moment that is chosen by chance, whatever it does then; in three of ten cases its
follower, too, while it starts. When all kills are done the run goes on to its end. Exit status 1 where the run doesn't
end well, an episode is missing or stands there twice, a task was left out, an episode failed, tokens are of other
versions than they may be, or more than 30 seconds pass until the place of a killed process works again. That moment is
seen in what the run says of itself every two seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from kill_victims import KINDS, WORKERS, Place, Run, cluster_for

ROOT = Path(__file__).resolve().parents[2]
PROMPTS, GROUP = 4, 4
LONGEST_RECOVERY = 30.0
LONGEST_WAIT = 180.0
"""Seconds after which a place counts as lost for good."""
FOLLOWERS = 0.3
TASKS = {"split": "train", "size": 40, "kinds": ["tiny_sum"]}
CONFIG: dict[str, Any] = {
    "threads": 1,
    "device": "cpu",
    "environments": {"default": {"rewards": ["exact"], "max_turns": 3}},
    "data": {"train": {"use": "arithmetic", "options": TASKS}},
    "rollout": {"max_turn_tokens": 32, "max_episode_tokens": 256, "concurrency": 8, "max_staleness": 1},
    "algorithm": {"preset": "grpo", "group_size": GROUP, "importance": {}},
    "trainer": {"prompts_per_step": PROMPTS, "learning_rate": 1.0e-6, "save_every": 0},
    "observers": [],
    "cluster": {"rollout_workers": WORKERS, "worker_cpus": 0, "worker_restarts": 20},
}
WARM_UP: dict[str, Any] = {
    "data": {"use": "arithmetic_demos", "options": {"kinds": ["tiny_sum"], "call_share": 0.8, "no_tool_share": 0.0}},
    "steps": 40,
    "batch_size": 32,
    "learning_rate": 3.0e-3,
    "warmup_steps": 5,
}
"""After it the model calls the calculator in most episodes."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=sorted(KINDS), default="rollout")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=Path("runs/worker-kills"))
    args = parser.parse_args()
    kind = KINDS[args.kind]
    with cluster_for(kind) as cluster:
        facts = battery(kind, cluster, args.dir.resolve(), args.kills, args.seed)
    print(json.dumps(facts, indent=2))
    return 1 if facts["problems"] else 0


def battery(kind: type[Place], cluster: Any, folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kill so often, then let the run end."""
    steps = kills * kind.steps
    prepare(kind, cluster, folder, steps)
    begin = time.monotonic()
    with (folder / "run.log").open("wb") as log:
        process = _toolrl("train", folder, log)
    try:
        run, chance = Run(process.pid, folder / "run"), random.Random(seed)
        recoveries, done = _kill(lambda: kind(run, chance, cluster), lambda: process.poll() is None, kills, chance)
        status = process.wait()
    finally:
        process.kill()
        process.wait()
    problems = [f"the run ended with status {status}"] if status else []
    if done < kills:
        problems.append(f"the run was over after {done} kills")
    problems += [f"recovery took {it:.1f} s" for it in recoveries if it > LONGEST_RECOVERY]
    found = look(folder / "run", steps, problems)
    return {
        "kills": done,
        "seconds_to_recover": sorted(round(it, 1) for it in recoveries),
        "seconds": round(time.monotonic() - begin),
        **found,
        "problems": problems,
    }


def prepare(kind: type[Place], cluster: Any, folder: Path, steps: int) -> None:
    """A model that calls tools, and the run's config."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make = ROOT / "docs" / "examples" / "quickstart" / "make_model.py"
    subprocess.run([sys.executable, str(make), str(folder / "model")], check=True, stdout=subprocess.DEVNULL)
    warm = {**CONFIG, "model": {"path": str(folder / "model")}, "run": {"dir": str(folder), "name": "warm"}}
    environment = {**CONFIG["environments"]["default"], "tools": ["calculator"]}
    warm |= {"sft": WARM_UP, "environments": {"default": environment}}
    (folder / "config.yaml").write_text(yaml.safe_dump(warm))
    with (folder / "warm.log").open("wb") as log:
        if _toolrl("sft", folder, log).wait():
            raise SystemExit((folder / "warm.log").read_text())
    own = kind.config({"use": "calculator"})
    config = {**CONFIG, "model": {"path": str(folder / "warm")}, "run": {"dir": str(folder), "name": "run"}}
    config["environments"] = {"default": {**environment, "tools": own["tools"]}}
    config["trainer"] = {**CONFIG["trainer"], **own.get("trainer", {}), "steps": steps}
    config["cluster"] = {**CONFIG["cluster"], **own["cluster"]}
    if cluster is not None:
        config["cluster"]["address"] = cluster.address
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


def _toolrl(verb: str, folder: Path, log: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "toolrl", verb, str(folder / "config.yaml")]
    return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _kill(
    places: Callable[[], Place], alive: Callable[[], bool], kills: int, chance: random.Random
) -> tuple[list[float], int]:
    """Seconds from a kill until its place worked again, and how many kills there were."""
    recoveries: list[float] = []
    gone: set[int] = set()
    while len(gone) < kills and alive():
        time.sleep(chance.uniform(0.0, 3.0))
        place = places()
        pid = place.pid() if place.ready() else None
        if pid is None or not alive():
            continue
        gone.add(pid)
        killed = time.monotonic()
        place.kill()
        if len(gone) < kills and chance.random() < FOLLOWERS:
            # Its follower, too, while it starts.
            while (pid := place.pid()) in {*gone, None} and alive():
                time.sleep(0.05)
            time.sleep(chance.uniform(0.0, 3.0))
            if pid is not None and place.pid() == pid and alive():
                gone.add(pid)
                killed = time.monotonic()
                place.kill()
        while alive() and time.monotonic() - killed < LONGEST_WAIT and not place.recovered(gone):
            time.sleep(0.1)
        if alive():
            recoveries.append(time.monotonic() - killed)
            place.heal()
    return recoveries, len(gone)


def look(run: Path, steps: int, problems: list[str]) -> dict[str, Any]:
    """Note what isn't as it should be; what the run's folder says of what happened."""
    from toolrl.runs.folder import RunFolder

    folder = RunFolder.open(run)
    stored = list(folder.episodes(kind="train"))
    seen, wanted = Counter(it.episode.id for it in stored), Counter(promised(steps))
    problems += [f"{name} stands there {seen[name]} times, not {wanted[name]}"
                 for name in sorted(seen | wanted) if seen[name] != wanted[name]]  # fmt: skip
    failed = [it.episode.failure.message for it in stored if it.episode.failure is not None]
    problems += [f"{count} episodes failed: {text}" for text, count in Counter(failed).items()]
    lines = folder.metrics_lines("train")
    if [line.step for line in lines] != [*range(1, steps + 1)]:
        problems.append(f"{len(lines)} lines of metrics for {steps} steps")
    oldest = max((line.metrics.get("staleness/max", 0.0) for line in lines), default=0.0)
    if oldest > 1:
        problems.append(f"a token was {oldest:g} versions old")
    errors = Counter(record.result.error for it in stored for record in it.episode.calls)
    names = sorted({name for line in lines for name in line.metrics if name.startswith("cluster/restarted")})
    return {
        "episodes": len(stored),
        "calls": sum(errors.values()),
        "calls_with_an_error": {str(kind): count for kind, count in errors.items() if kind is not None},
        **{name: int(sum(line.metrics.get(name, 0.0) for line in lines)) for name in names},
    }


def promised(steps: int) -> Iterator[str]:
    """Names of all episodes: those of the tasks that the data's order has first."""
    from toolrl.building import build_component
    from toolrl.config.frame import ComponentUse
    from toolrl.loop.data import EndlessOrder
    from toolrl.plugins.registry import load_registry
    from toolrl.protocols import BuildContext

    use = ComponentUse(use="arithmetic", options=TASKS)
    rows = build_component(load_registry(), "datasets", use, BuildContext("arithmetic", seed=0), "data.train")
    for number, task in enumerate(EndlessOrder(rows, seed=0).take(0, steps * PROMPTS)):
        step, place = divmod(number, PROMPTS)
        yield from (f"train-{step + 1}/{place}/{task.id}#{index}" for index in range(GROUP))


if __name__ == "__main__":
    sys.exit(main())
