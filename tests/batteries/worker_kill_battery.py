"""Kills processes of one training run by SIGKILL at random moments, and counts what comes of it.

    python tests/batteries/worker_kill_battery.py --kind rollout|trainer|limiter|mcp|node [--kills 10]
        [--staleness 1] [--seed 0] [--dir runs/worker-kills] [--json OUT.json]

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
from pathlib import Path
from typing import Any

import yaml
from kill_victims import KINDS, WORKERS, Run, Target, kind_of, wait_for_another

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
    "rollout": {"max_turn_tokens": 32, "max_episode_tokens": 256, "concurrency": 8},
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
    parser.add_argument("--staleness", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=Path("runs/worker-kills"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with kind_of(args.kind) as kind:
        facts = {"kind": args.kind, **battery(kind, args.dir.resolve(), args.kills, args.staleness, args.seed)}
    print(json.dumps(facts, indent=2))
    if args.json:
        args.json.write_text(json.dumps(facts, indent=2) + "\n")
    return 1 if facts["problems"] else 0


def battery(kind: Any, folder: Path, kills: int, staleness: int, seed: int) -> dict[str, Any]:
    """Kill so often, then let the run end."""
    steps = kills * kind.steps
    prepare(kind, folder, steps, staleness)
    begin = time.monotonic()
    with (folder / "run.log").open("wb") as log:
        process = _toolrl("train", folder, log)
    try:
        recoveries, done = _kill(kind, process, folder / "run", kills, random.Random(seed))
        status = process.wait()
    finally:
        process.kill()
        process.wait()
    problems = [f"the run ended with status {status}"] if status else []
    if done < kills:
        problems.append(f"the run was over after {done} kills")
    problems += [f"recovery took {it:.1f} s" for it in recoveries if it > LONGEST_RECOVERY]
    found = look(folder / "run", staleness, steps, problems)
    return {
        "kills": done,
        "seconds_to_recover": sorted(round(it, 1) for it in recoveries),
        "seconds": round(time.monotonic() - begin),
        **found,
        "problems": problems,
    }


def prepare(kind: Any, folder: Path, steps: int, staleness: int) -> None:
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
    config["rollout"] = {**CONFIG["rollout"], "max_staleness": staleness}
    config["trainer"] = {**CONFIG["trainer"], **own.get("trainer", {}), "steps": steps}
    config["cluster"] = {**CONFIG["cluster"], **own["cluster"]}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


def _toolrl(verb: str, folder: Path, log: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "toolrl", verb, str(folder / "config.yaml")]
    return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _kill(
    kind: Any, process: subprocess.Popen[bytes], folder: Path, kills: int, chance: random.Random
) -> tuple[list[float], int]:
    """Seconds from a kill until its place worked again, and how many kills there were."""
    recoveries: list[float] = []
    run = Run(process.pid, folder)
    gone: set[int] = set()

    def alive() -> bool:
        return process.poll() is None

    while len(gone) < kills and alive():
        time.sleep(chance.uniform(0.0, 3.0) if run.status() else 0.1)
        target: Target | None = kind.target(run, chance)
        pid = target.pid() if target is not None else None
        if target is None or pid is None or not alive():
            continue
        killed = _strike(target, pid, gone)
        if len(gone) < kills and chance.random() < FOLLOWERS:
            # Its follower, too, while it starts.
            follower = wait_for_another(target, gone, alive)
            time.sleep(chance.uniform(0.0, 3.0))
            if follower is not None and target.pid() == follower and alive():
                killed = _strike(target, follower, gone)
        while alive() and time.monotonic() - killed < LONGEST_WAIT and not target.recovered(gone):
            time.sleep(0.1)
        if alive():
            recoveries.append(time.monotonic() - killed)
            target.heal()
    return recoveries, len(gone)


def _strike(target: Target, pid: int, gone: set[int]) -> float:
    """Kill; when that was."""
    gone.add(pid)
    now = time.monotonic()
    target.kill()
    return now


def look(run: Path, staleness: int, steps: int, problems: list[str]) -> dict[str, Any]:
    """Note what isn't as it should be; what the run's folder says of what happened."""
    from toolrl.runs.folder import RunFolder

    folder = RunFolder.open(run)
    stored = list(folder.episodes(kind="train"))
    _count(Counter(it.episode.id for it in stored), Counter(it.step for it in stored), steps, problems)
    _compare_tasks(Counter(it.episode.task.id for it in stored), steps, problems)
    failed = [it.episode.failure.message for it in stored if it.episode.failure is not None]
    problems += [f"{count} episodes failed: {text}" for text, count in Counter(failed).items()]
    lines = folder.metrics_lines("train")
    if len(lines) != steps:
        problems.append(f"{len(lines)} lines of metrics for {steps} steps")
    oldest = max((line.metrics.get("staleness/max", 0.0) for line in lines), default=0.0)
    if oldest > staleness:
        problems.append(f"a token was {oldest:g} versions old")
    errors = Counter(record.result.error for it in stored for record in it.episode.calls)
    names = sorted({name for line in lines for name in line.metrics if name.startswith("cluster/restarted")})
    return {
        "episodes": len(stored),
        "calls": sum(errors.values()),
        "calls_with_an_error": {str(kind): count for kind, count in errors.items() if kind is not None},
        **{name: int(sum(line.metrics.get(name, 0.0) for line in lines)) for name in names},
    }


def _count(seen: Counter[str], by_step: Counter[int | None], steps: int, problems: list[str]) -> None:
    """Every episode that the run promised, each once."""
    if (total := sum(seen.values())) != steps * PROMPTS * GROUP:
        problems.append(f"{total} episodes instead of {steps * PROMPTS * GROUP}")
    problems += [f"{name} stands there {count} times" for name, count in seen.items() if count > 1]
    groups = Counter(name.rpartition("#")[0] for name in seen)
    problems += [f"{name} has {count} episodes" for name, count in groups.items() if count != GROUP]
    wrong = [step for step in range(1, steps + 1) if by_step[step] != PROMPTS * GROUP]
    problems += [f"step {step} has {by_step[step]} episodes" for step in wrong]


def _compare_tasks(found: Counter[str], steps: int, problems: list[str]) -> None:
    """The tasks are those that the data's order has first."""
    from toolrl.building import build_component
    from toolrl.config.frame import ComponentUse
    from toolrl.loop.data import EndlessOrder
    from toolrl.plugins.registry import load_registry
    from toolrl.protocols import BuildContext

    use = ComponentUse(use="arithmetic", options=TASKS)
    rows = build_component(load_registry(), "datasets", use, BuildContext("arithmetic", seed=0), "data.train")
    wanted: Counter[str] = Counter()
    for task in EndlessOrder(rows, seed=0).take(0, steps * PROMPTS):
        wanted[task.id] += GROUP
    problems += [f"task {name}: {found[name]} episodes, not {wanted[name]}"
                 for name in sorted(wanted | found) if found[name] != wanted[name]]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
