"""The quickstart over several seeds: does it succeed on each?

    python tests/benchmarks/quickstart_seeds.py [--seeds 0 1 2 3 4] [--dir runs/quickstart-seeds]

Prints a row for each seed, as a Markdown table, and exits with 1 where training with tools doesn't beat the best
evaluation of the control by 50 points.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

QUICKSTART = Path(__file__).parents[2] / "docs" / "examples" / "quickstart" / "quickstart.py"
MARGIN = 0.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--dir", type=Path, default=Path("runs/quickstart-seeds"))
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    rows = [run(seed, args.dir / str(seed), args.device) for seed in args.seeds]
    print("\n| seed | start | with tools | control, last (best) | calls per answer | margin in points | seconds |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['seed']} | {row['accuracy_start']:.1%} | {row['accuracy_tools']:.1%} "
            f"| {row['accuracy_no_tools']:.1%} ({row['accuracy_no_tools_best']:.1%}) "
            f"| {row['calls_per_answer_start']:.2f} → {row['calls_per_answer_tools']:.2f} "
            f"| {100 * margin(row):.1f} | {row['seconds']:.0f} |"
        )
    return 0 if all(margin(row) >= MARGIN for row in rows) else 1


def run(seed: int, folder: Path, device: str) -> dict[str, float]:
    """One quickstart; its summary."""
    command = [sys.executable, str(QUICKSTART), "--seed", str(seed), "--dir", str(folder), "--device", device]
    subprocess.run(command, check=True)
    return json.loads((folder / "summary.json").read_text())


def margin(row: dict[str, float]) -> float:
    """By how much training with tools beats the best evaluation of the control."""
    return row["accuracy_tools"] - row["accuracy_no_tools_best"]


if __name__ == "__main__":
    sys.exit(main())
