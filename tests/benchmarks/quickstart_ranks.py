"""The quickstart's training with tools by one process and by several gloo ranks: do they reach the same accuracy?

    python tests/benchmarks/quickstart_ranks.py [--ranks 1 2 4] [--seed 0] [--dir runs/quickstart-ranks]

All start from one cold start. Prints a row for each, as a Markdown table, and exits with 1 where ranks end more than
five points below one process.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parents[2] / "docs" / "examples" / "quickstart"
ALLOWED = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=Path("runs/quickstart-ranks"))
    args = parser.parse_args()
    shutil.rmtree(args.dir, ignore_errors=True)
    args.dir.mkdir(parents=True)
    run(args.dir / "model.log", str(HERE / "make_model.py"), str(args.dir / "model"), "--seed", str(args.seed))
    for name, source in (("warmup-1", "model"), ("warmup-2", "warmup-1")):
        run(args.dir / f"{name}.log", *toolrl(args, "sft", name, source, name))
    print("| ranks | accuracy at the start | after 10 steps | after 20 | after 30 | calls per answer | seconds |")
    print("|---|---|---|---|---|---|---|")
    last = {}
    for ranks in args.ranks:
        command, name = (
            ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)],
            f"ranks-{ranks}",
        )
        started = time.perf_counter()
        run(args.dir / f"{name}.log", *(command if ranks > 1 else ()), *toolrl(args, "train", "grpo", "warmup-2", name))
        lines = map(json.loads, (args.dir / name / "metrics.jsonl").read_text().splitlines())
        found = sorted((line for line in lines if line["kind"] == "eval"), key=lambda line: line["step"])
        shares = " | ".join(f"{line['accuracy']:.1%}" for line in found)
        seconds = time.perf_counter() - started
        print(f"| {ranks} | {shares} | {found[-1]['calls/mean']:.2f} | {seconds:.0f} |", flush=True)
        last[ranks] = found[-1]["accuracy"]
    return 0 if all(value >= last[min(last)] - ALLOWED for value in last.values()) else 1


def toolrl(args: argparse.Namespace, verb: str, config: str, source: str, name: str) -> list[str]:
    """The arguments of a command on a config of the quickstart."""
    values = {"model.path": args.dir / source, "run.dir": args.dir, "run.name": name, "seed": args.seed}
    sets = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    return ["-m", "toolrl", verb, str(HERE / f"{config}.yaml"), "--set", "device=cpu", *sets]


def run(log: Path, *arguments: str) -> None:
    """Run Python; what it prints goes to a file."""
    with log.open("w") as output:
        subprocess.run([sys.executable, *arguments], stdout=output, stderr=subprocess.STDOUT, check=True)


if __name__ == "__main__":
    sys.exit(main())
