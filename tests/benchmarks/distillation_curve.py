"""Steps to 90 % held-out accuracy on the quickstart: distillation, distillation mixed with the reward, and GRPO.

    python tests/benchmarks/distillation_curve.py [--seed 0] [--dir runs/algorithm-table] [--picture FILE] [--print]

The teacher is what the quickstart's grpo.yaml trained, the student what that began with. All runs take the same tasks,
16 prompts with 8 episodes each a step, and are evaluated every 2 steps. Prints a Markdown table; `--picture` draws the
curves with matplotlib. Shares its runs' folder, and so the cold start, with algorithm_table.py; a run that has ended
isn't made again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from algorithm_table import SETTINGS, cold_start, ended, evaluations, folder, train

TEACHER = "dapo"
"""The row of algorithm_table.py that teaches: grpo.yaml as it is."""
GOAL = 0.9
EVERY = 2
FAST = ["trainer.learning_rate=1.0e-3", "trainer.steps=20"]
FOUR = ["trainer.updates_per_step=4", "trainer.steps=16"]
EIGHT = ["trainer.updates_per_step=8", "trainer.steps=10"]
FALLING = ["trainer.learning_rate=1.0e-3", "trainer.schedule=linear", "trainer.steps=10", "trainer.updates_per_step=2"]
PLAIN = ["algorithm.kl_correction=false"]
ONCE = ["algorithm.group_size=1", "trainer.prompts_per_step=128"]
CURVES: dict[str, tuple[list[str], list[str] | None]] = {
    "GRPO": ([], None),
    "distillation": ([], []),
    "distillation, as loss": ([], ["kl_as: loss"]),
    "distillation and reward": ([], ["reward_weight: 1.0"]),
    "GRPO, learning_rate 1e-3": (FAST, None),
    "distillation, learning_rate 1e-3": (FAST, []),
    "GRPO, 4 updates": (FOUR, None),
    "distillation, 4 updates": (FOUR, []),
    "distillation and reward, 4 updates": (FOUR, ["reward_weight: 1.0"]),
    "distillation, k3, 4 updates": ([*FOUR, *PLAIN], ["kl_as: loss"]),
    "distillation, k3": ([*PLAIN, "trainer.steps=24"], ["kl_as: loss"]),
    "distillation, sharp teacher, 4 updates": (FOUR, ["teachers: {default: {model: /work/tmp/table/q/teacher}}"]),
    "GRPO, 8 updates": (EIGHT, None),
    "distillation, 8 updates": (EIGHT, []),
    "GRPO, falling rate": (FALLING, None),
    "distillation, falling rate": (FALLING, []),
    "distillation, clip 2, 4 updates": (FOUR, ["clip: 2"]),
    "distillation, clip 2": (["trainer.steps=24"], ["clip: 2"]),
    "distillation, 128 prompts": ([*ONCE, "trainer.steps=24"], []),
    "distillation, 128 prompts, sharp teacher": (
        [*ONCE, "trainer.steps=24"],
        ["teachers: {default: {model: /work/tmp/table/q/teacher}}"],
    ),
    "distillation, 128 prompts, 4 updates": ([*FOUR, *ONCE], []),
}
"""By the name of a curve, what `--set` takes, and settings of `algorithm.distillation`; None for none."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=Path("runs/algorithm-table"))
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the curves into this PNG")
    parser.add_argument("--print", action="store_true", help="make no run")
    args = parser.parse_args()
    if not args.print:
        cold_start(args.dir, args.seed)
        train(args.dir, TEACHER, args.seed)
        for name in CURVES:
            ended(args.dir, run_name(name), "grpo", "warmup-2", args.seed, "train", settings(args.dir, name))
    found = {name: curve(args.dir / run_name(name)) for name in CURVES}
    steps = sorted({step for of in found.values() for step in of})
    print("| | " + " | ".join(f"{step}" for step in steps) + f" | first at {GOAL:.0%} |")
    print("|---" * (len(steps) + 2) + "|")
    for name, of in found.items():
        shares = " | ".join(f"{100 * of[step]:.0f}" if step in of else "" for step in steps)
        print(f"| {name} | {shares} | {reached(of) or 'not reached'} |")
    if args.picture:
        draw(found, args.picture)
    grpo = reached(found["GRPO"]) or len(steps) * EVERY
    return 0 if (reached(found["distillation"]) or grpo) < grpo else 1


def run_name(name: str) -> str:
    return f"curve-{folder(name)}"


def settings(where: Path, name: str) -> list[str]:
    """What `--set` takes for a curve."""
    sets, own = CURVES[name]
    sets = ["algorithm.preset=grpo", f"evaluation.every={EVERY}", *sets]
    if own is None:
        return sets
    if any("teachers" in it for it in own):
        return [*sets, "algorithm.loss_aggregation=token_mean", f"algorithm.distillation={{{', '.join(own)}}}"]
    teacher = f"teachers: {{default: {{model: {where / folder(TEACHER)}}}}}"
    distillation = f"algorithm.distillation={{{', '.join([teacher, *own])}}}"
    return [*sets, "algorithm.loss_aggregation=token_mean", distillation]


def curve(run: Path) -> dict[int, float]:
    """Accuracy by step."""
    return {line["step"]: line["accuracy"] for line in evaluations(run)}


def reached(of: dict[int, float]) -> int | None:
    """The first step that is evaluated at the goal."""
    return next((step for step, accuracy in sorted(of.items()) if accuracy >= GOAL), None)


def draw(found: dict[str, dict[int, float]], file: Path) -> None:
    """A line for each run."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.4), dpi=110)
    for name, of in found.items():
        axes.plot(list(of), [100 * value for value in of.values()], marker="o", markersize=3, label=name)
    axes.axhline(100 * GOAL, color="grey", linewidth=0.8, linestyle="dotted")
    axes.set(xlabel="step", ylabel="held-out accuracy in %", ylim=(0, 102), xlim=(0, None))
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(file)


if __name__ == "__main__":
    assert TEACHER in SETTINGS
    sys.exit(main())
