"""Steps to 90 % held-out accuracy on the quickstart: distillation, distillation mixed with the reward, and GRPO.

    python tests/benchmarks/distillation_curve.py [--seed 0] [--dir runs/algorithm-table] [--picture FILE] [--print]

The teacher is what the quickstart's grpo.yaml trained, the student what that began with. Runs that are compared take
the same tasks, 16 prompts with 8 episodes a step or 4 with 4, and are evaluated every 2 steps. Prints a Markdown table,
and exits with 1 where distillation is nowhere ahead of GRPO; `--picture` draws the curves with matplotlib. Shares its
runs' folder, and so the cold start, with algorithm_table.py; a run that has ended isn't made again.
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
FOUR = ["trainer.updates_per_step=4", "trainer.steps=16"]
FEW = ["algorithm.group_size=4", "trainer.prompts_per_step=4"]
CURVES: dict[str, tuple[list[str], list[str] | None]] = {
    "GRPO": ([], None),
    "distillation": ([], []),
    "distillation and reward": ([], ["reward_weight: 1.0"]),
    "GRPO, 4 updates": (FOUR, None),
    "distillation, 4 updates": (FOUR, []),
    "distillation and reward, 4 updates": (FOUR, ["reward_weight: 1.0"]),
    "distillation, clip 2, 4 updates": (FOUR, ["clip: 2"]),
    "GRPO, 16 episodes": (FEW, None),
    "distillation, 16 episodes": (FEW, []),
    "distillation, clip 2, 16 episodes": (FEW, ["clip: 2"]),
    "GRPO, 16 episodes, 4 updates": ([*FOUR, *FEW], None),
    "distillation, 16 episodes, 4 updates": ([*FOUR, *FEW], []),
    "distillation, clip 2, 16 episodes, 4 updates": ([*FOUR, *FEW], ["clip: 2"]),
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
        print(f"| {name} | {shares} | {'–' if first(of) == sys.maxsize else first(of)} |")
    if args.picture:
        draw(found, args.picture)
    ahead = [
        first(found[name.replace("GRPO", "distillation")]) < first(of) for name, of in found.items() if "GRPO" in name
    ]
    return 0 if any(ahead) else 1


def run_name(name: str) -> str:
    return f"curve-{folder(name)}"


def settings(where: Path, name: str) -> list[str]:
    """What `--set` takes for a curve."""
    sets, own = CURVES[name]
    sets = ["algorithm.preset=grpo", f"evaluation.every={EVERY}", *sets]
    if own is None:
        return sets
    teacher = f"teachers: {{default: {{model: {where / folder(TEACHER)}}}}}"
    distillation = f"algorithm.distillation={{{', '.join([teacher, *own])}}}"
    return [*sets, "algorithm.loss_aggregation=token_mean", distillation]


def curve(run: Path) -> dict[int, float]:
    """Accuracy by step."""
    return {line["step"]: line["accuracy"] for line in evaluations(run)}


def first(of: dict[int, float]) -> int:
    """The first step that is evaluated at the goal."""
    return next((step for step, accuracy in sorted(of.items()) if accuracy >= GOAL), sys.maxsize)


def draw(found: dict[str, dict[int, float]], file: Path) -> None:
    """A line for each run: dashed those with one update a step; those with 16 episodes a step on the right."""
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(8.4, 3.4), dpi=90, sharey=True)
    colors = {"GRPO": "black", "distillation and reward": "tab:green", "distillation, clip 2": "tab:red"}
    for name, of in found.items():
        few, four = ", 16 episodes" in name, ", 4 updates" in name
        kind = name.replace(", 16 episodes", "").replace(", 4 updates", "")
        look = {"color": colors.get(kind, "tab:blue"), "linestyle": "-" if four else "--", "linewidth": 1.2}
        label = kind + (", 4 updates" if four else "")
        values = [100 * value for value in of.values()]
        panels[int(few)].plot(list(of), values, marker="o", markersize=2, label=label, **look)
    for axes, episodes in zip(panels, (128, 16), strict=True):
        axes.axhline(100 * GOAL, color="grey", linewidth=0.8, linestyle="dotted")
        axes.set(xlabel="step", title=f"{episodes} episodes a step", ylim=(10, 100), xlim=(0, None))
        axes.legend(loc="lower right", frameon=False, fontsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("held-out accuracy in %")
    figure.tight_layout()
    figure.savefig(file)


if __name__ == "__main__":
    assert TEACHER in SETTINGS
    sys.exit(main())
