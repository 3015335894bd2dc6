"""The quickstart with each preset and each option of the objective: does it learn?

    python tests/benchmarks/algorithm_table.py [--only WORD …] [--seed 0] [--dir runs/algorithm-table]

Every run starts from one cold start and is the quickstart's grpo.yaml but for the values named. Prints a row for each,
as a Markdown table. A run that has ended isn't made again, so an interrupted table is taken up by the same command.
Takes two minutes a run on an idle CPU core.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples" / "common"))
from stages import evaluations, toolrl

QUICKSTART = Path(__file__).parents[2] / "docs" / "examples" / "quickstart"
GRPO = ["algorithm.preset=grpo"]
FOUR = ["trainer.updates_per_step=4"]
FULL = ["evaluation.top_p=1.0", "evaluation.min_p=0.0"]
"""Evaluations of the whole distribution, as in all other rows."""
PPO = [
    "algorithm={preset: ppo, group_size: 1, critic: {learning_rate: 3.0e-4}}",
    "trainer.prompts_per_step=128",
]
KL = ["algorithm.kl_coef=0.001"]
STALE = ["rollout.max_staleness=1"]
SETTINGS: dict[str, list[str]] = {
    "no tools (the control)": ["environments.default.tools=[]"],
    "grpo": GRPO,
    "dr_grpo": ["algorithm.preset=dr_grpo"],
    "dapo": [],
    "gspo": ["algorithm.preset=gspo"],
    "cispo": ["algorithm.preset=cispo"],
    "rloo": ["algorithm.preset=rloo"],
    "reinforce_plus_plus": ["algorithm.preset=reinforce_plus_plus"],
    "reinforce_plus_plus_baseline": ["algorithm.preset=reinforce_plus_plus_baseline"],
    "ppo": PPO,
    "ppo, critic: {level: token}": [
        "algorithm={preset: ppo, group_size: 1, critic: {level: token, learning_rate: 3.0e-4, gae_lambda: 0.99}}",
        "trainer.prompts_per_step=128",
    ],
    "4 updates a step": [*FOUR],
    "4 updates, old_logprobs: sampled": [*FOUR, "algorithm.old_logprobs=sampled"],
    "4 epochs": ["trainer.epochs_per_step=4"],
    "4 updates, clip_dual: 3": [*FOUR, "algorithm.clip_dual=3"],
    "kl_coef: 0.001": KL,
    "kl_coef: 0.001, k1": [*KL, "algorithm.kl_estimator=k1"],
    "kl_coef: 0.001, k2": [*KL, "algorithm.kl_estimator=k2"],
    "kl_coef: 0.001, kl_correction: false": [*KL, "algorithm.kl_correction=false"],
    "kl_coef: 0.001, kl_in: reward": [*KL, "algorithm.kl_in=reward"],
    "reference: {}, measured alone": ["algorithm.reference={}"],
    "kl_coef: 0.001, reference: {sync_every: 5}": [*KL, "algorithm.reference={sync_every: 5}"],
    "entropy_coef: 0.001": ["algorithm.entropy_coef=0.001"],
    "credit: turn": ["algorithm.credit=turn"],
    "advantage: gdpo": [*GRPO, "algorithm.advantage=gdpo"],
    "advantage: maxrl": [*GRPO, "algorithm.advantage=maxrl"],
    "advantage: gigpo": [*GRPO, "algorithm.advantage=gigpo"],
    "4 updates, policy_loss: dppo": [*GRPO, *FOUR, "algorithm.policy_loss=dppo"],
    "top_p: 0.9": ["rollout.top_p=0.9", *FULL],
    "top_p: 0.9, keep_sampling_masks": ["rollout.top_p=0.9", "rollout.keep_sampling_masks=true", *FULL],
    "min_p: 0.05, keep_sampling_masks": ["rollout.min_p=0.05", "rollout.keep_sampling_masks=true", *FULL],
    "dynamic_sampling": ["algorithm.dynamic_sampling=true"],
    "difficulty: {}, 128 tasks": ["data.train.options.size=128", "algorithm.difficulty={}"],
    "max_staleness: 1": STALE,
    "max_staleness: 1, importance: {}": [*STALE, "algorithm.importance={}"],
    "max_staleness: 1, importance: {mode: reject}": [*STALE, "algorithm.importance={mode: reject}"],
    "max_staleness: 1, rejection: {level: token}": [*STALE, "algorithm.rejection={level: token}"],
    "max_staleness: 1, rejection: {level: sequence}": [*STALE, "algorithm.rejection={level: sequence}"],
    "max_staleness: 1, rejection: {level: mean}": [*STALE, "algorithm.rejection={level: mean}"],
    "max_staleness: 2, replay: 0.25": ["rollout.max_staleness=2", "rollout.replay=0.25"],
    "lora: {rank: 16}, learning_rate: 3e-3": ["model.lora={rank: 16}", "trainer.learning_rate=3.0e-3"],
}
"""By what a row is called: what differs from grpo.yaml, as `--set` takes it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="settings whose name holds one of these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=Path("runs/algorithm-table"))
    args = parser.parse_args()
    chosen = [name for name in SETTINGS if any(word in name for word in args.only or [""])]
    cold_start(args.dir, args.seed)
    print("| setting | start | after 10 steps | after 20 | after 30 | seconds |\n|---|---|---|---|---|---|")
    for name in chosen:
        train(args.dir, name, args.seed)
        run = args.dir / folder(name)
        shares = " | ".join(written(line) for line in evaluations(run))
        print(f"| {name} | {shares} | {float((run / 'seconds').read_text()):.0f} |", flush=True)


def written(line: dict[str, float]) -> str:
    """An accuracy, with its standard error where there is one."""
    error = line.get("accuracy/stderr")
    return f"{line['accuracy']:.1%}" + ("" if error is None else f" ± {100 * error:.1f}")


def folder(name: str) -> str:
    """Of a setting's run."""
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def cold_start(where: Path, seed: int) -> None:
    """The quickstart's model and its two phases of fine-tuning, unless they are there."""
    if not (where / "model").exists():
        where.mkdir(parents=True, exist_ok=True)
        run(where / "model.log", [str(QUICKSTART / "make_model.py"), str(where / "model"), "--seed", str(seed)])
    for name, source in (("warmup-1", "model"), ("warmup-2", "warmup-1")):
        ended(where, name, name, source, seed, "sft", [])


def train(where: Path, name: str, seed: int) -> None:
    """One run, unless it has ended."""
    ended(where, folder(name), "grpo", "warmup-2", seed, "train", SETTINGS[name])


def ended(where: Path, name: str, config: str, source: str, seed: int, command: str, sets: Sequence[str]) -> None:
    """A command on a config of the quickstart; its folder holds the seconds that it took once it has ended."""
    if (where / name / "seconds").exists():
        return
    shutil.rmtree(where / name, ignore_errors=True)
    values = {"model.path": where / source, "run.dir": where, "run.name": name, "seed": seed, "device": "cpu"}
    own = [word for each in sets for word in ("--set", each)]
    print(f"{name} …", file=sys.stderr, flush=True)
    started = time.perf_counter()
    run(where / f"{name}.log", [*toolrl(command, QUICKSTART / f"{config}.yaml", values), *own])
    (where / name / "seconds").write_text(f"{time.perf_counter() - started:.1f}\n")


def run(log: Path, arguments: Sequence[str]) -> None:
    """Run Python on one thread; what it prints goes to a file."""
    with log.open("w") as output:
        command = [sys.executable, *arguments]
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        if subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=one_thread).returncode:
            raise SystemExit(f"{log.stem} failed; what it printed is in {log}")


if __name__ == "__main__":
    main()
