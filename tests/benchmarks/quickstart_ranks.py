"""The quickstart's training with tools by one process and by several gloo ranks: do they reach the same accuracy?

    python tests/benchmarks/quickstart_ranks.py [--ranks 1 2 4] [--seed 0] [--dir runs/quickstart-ranks]

All start from one cold start. Prints a row for each, as a Markdown table, and exits with 1 where ranks end more than
five points below one process.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from algorithm_table import QUICKSTART, cold_start, evaluations, run, toolrl

ALLOWED = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=Path("runs/quickstart-ranks"))
    args = parser.parse_args()
    cold_start(args.dir, args.seed)
    print("| ranks | accuracy at the start | after 10 steps | after 20 | after 30 | calls per answer | seconds |")
    print("|---|---|---|---|---|---|---|")
    last = {}
    for ranks in args.ranks:
        name, torchrun = f"ranks-{ranks}", ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        values = {"model.path": args.dir / "warmup-2", "run.dir": args.dir, "run.name": name, "seed": args.seed}
        command = toolrl("train", QUICKSTART / "grpo.yaml", {**values, "device": "cpu"}, "--overwrite")
        started = time.perf_counter()
        run(args.dir / f"{name}.log", [*([*torchrun, str(ranks)] if ranks > 1 else []), *command])
        found = evaluations(args.dir / name)
        shares = " | ".join(f"{line['accuracy']:.1%}" for line in found)
        seconds = time.perf_counter() - started
        print(f"| {ranks} | {shares} | {found[-1]['calls/mean']:.2f} | {seconds:.0f} |", flush=True)
        last[ranks] = found[-1]["accuracy"]
    return 0 if all(value >= last[min(last)] - ALLOWED for value in last.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
