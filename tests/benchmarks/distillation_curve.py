"""Steps to 90 % held-out accuracy on the quickstart: distillation, distillation mixed with the reward, and GRPO.

    python tests/benchmarks/distillation_curve.py [--seed 0] [--dir runs/algorithm-table] [--picture FILE]

The teacher is what the quickstart's grpo.yaml trained. The student is what that began with, or one that seldom calls:
warmup-2.yaml with calls in 2 of 100 demonstrations in place of 30. Runs that are compared take the same tasks, 16
prompts with 8 episodes a step or 4 with 4, and are evaluated every 2 steps. Prints a Markdown table, and exits with 1
where distillation is in no comparison ahead of GRPO; `--picture` draws the curves with matplotlib. Shares its runs'
folder, and so the cold start, with algorithm_table.py; a run that has ended isn't made again.
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
SHOWN = (0, 4, 10, 16, 22, 30, 40, 50, 60)
"""Steps of the table."""
SELDOM = "warmup-2-seldom"
"""The student that seldom calls."""
FEW = ["algorithm.group_size=4", "trainer.prompts_per_step=4"]
LONG = ["trainer.steps=60"]
CURVES: dict[str, tuple[list[str], list[str] | None]] = {
    "GRPO": ([], None),
    "distillation": ([], []),
    "distillation and reward": ([], ["reward_weight: 1.0"]),
    "GRPO, 16 episodes": (FEW, None),
    "distillation, 16 episodes": (FEW, []),
    "GRPO, seldom calls": (LONG, None),
    "distillation, seldom calls": (LONG, []),
    "distillation and reward, seldom calls": (LONG, ["reward_weight: 1.0"]),
}
"""By the name of a curve, what `--set` takes, and settings of `algorithm.distillation`; None for none."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=Path("runs/algorithm-table"))
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the curves into this PNG")
    args = parser.parse_args()
    cold_start(args.dir, args.seed)
    train(args.dir, TEACHER, args.seed)
    ended(args.dir, SELDOM, "warmup-2", "warmup-1", args.seed, "sft", ["sft.data.options.call_share=0.02"])
    for name in CURVES:
        start = SELDOM if "seldom" in name else "warmup-2"
        ended(args.dir, run_name(name), "grpo", start, args.seed, "train", settings(args.dir, name))
    found = {name: curve(args.dir / run_name(name)) for name in CURVES}
    print("| | " + " | ".join(f"{step}" for step in SHOWN) + f" | first at {GOAL:.0%} |")
    print("|---" * (len(SHOWN) + 2) + "|")
    for name, of in found.items():
        shares = " | ".join(f"{100 * of[step]:.0f}" if step in of else "" for step in SHOWN)
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
    """A panel for each comparison."""
    from matplotlib import pyplot

    titles = {
        "": "128 episodes a step",
        ", 16 episodes": "16 episodes a step",
        ", seldom calls": "seldom calls at first",
    }
    figure, panels = pyplot.subplots(1, len(titles), figsize=(8.4, 3.2), dpi=90, sharey=True)
    colors = {"GRPO": "black", "distillation": "tab:blue", "distillation and reward": "tab:green"}
    for name, of in found.items():
        kind, comma, rest = name.partition(", ")
        axes = panels[list(titles).index(comma + rest)]
        values = [100 * value for value in of.values()]
        axes.plot(list(of), values, marker="o", markersize=2, linewidth=1.2, label=kind, color=colors[kind])
    for axes, title in zip(panels, titles.values(), strict=True):
        axes.axhline(100 * GOAL, color="grey", linewidth=0.8, linestyle="dotted")
        axes.set(xlabel="step", title=title, ylim=(0, 100), xlim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(loc="lower right", frameon=False, fontsize=7)
    panels[0].set_ylabel("held-out accuracy in %")
    figure.tight_layout()
    figure.savefig(file)


if __name__ == "__main__":
    assert TEACHER in SETTINGS
    sys.exit(main())
