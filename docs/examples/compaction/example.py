"""Compaction from nothing: tasks, a small model, cold start, GRPO with summaries, and what it is without them.

    python docs/examples/compaction/example.py [--dir runs/compaction] [--seed 0]

Each stage is a command that can be run by hand; this script prints it and runs it. At the end it prints how the model
did before and after, and where the report is. A few minutes on two cores. `--sft-steps` and `--steps` shorten it to see
it run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from stages import ACCURACY, show, stage, toolrl

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=Path("runs/compaction"), help="folder for tasks, model and runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sft-steps", type=int, help="steps of the cold start, else those of warmup.yaml")
    parser.add_argument("--steps", type=int, help="steps of GRPO, else those of grpo.yaml")
    args = parser.parse_args()
    data, seed = args.dir / "data", ["--seed", str(args.seed)]
    stage("make the tasks", [str(HERE / "make_data.py"), str(data), *seed])
    stage("make the model", [str(HERE.parent / "quickstart" / "make_model.py"), str(args.dir / "model"), *seed])
    both = {"run.dir": args.dir, "seed": args.seed}
    warmup = {"model.path": args.dir / "model", "sft.data.options.path": data / "demos.jsonl"}
    warmup |= {**both, "sft.steps": args.sft_steps}
    stage("cold start", toolrl("sft", HERE / "warmup.yaml", warmup, "--overwrite"))
    grpo = {"model.path": args.dir / "warmup", "data.train.options.path": data / "train.jsonl"}
    grpo |= {**both, "data.eval.options.path": data / "test.jsonl", "trainer.steps": args.steps}
    stage("GRPO with compaction", toolrl("train", HERE / "grpo.yaml", grpo, "--overwrite"))
    without = {**grpo, "model.path": args.dir / "grpo", "environments.default.history": "[]", "run.name": "without"}
    stage("the same model without it", toolrl("eval", HERE / "grpo.yaml", without, "--overwrite"))
    stage("report", ["-m", "toolrl", "report", str(args.dir / "grpo")])
    show(args.dir / "grpo", "Held-out tasks", ACCURACY)
    return 0


if __name__ == "__main__":
    sys.exit(main())
