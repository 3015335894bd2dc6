"""Train a small model to use a calculator, and the same without the tool as control; on a CPU in a few minutes.

    python docs/examples/quickstart/quickstart.py [--seed 0] [--dir runs/quickstart] [--device auto]

Each stage is a command that can be run by hand; this script prints it, runs it and puts the results side by side:

    1. make a Qwen3 model of 0.64M random parameters and its tokenizer
    2. `toolrl sft` twice: it learns the form of a call, then unlearns when to make one
    3. `toolrl train` with the calculator, and `toolrl train` without it, side by side
    4. a table, summary.json and the report with both runs in it
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from stages import evaluations, say, stage, toolrl

HERE = Path(__file__).parent
MARK = ".quickstart"
"""A file that says that this script made a folder, and may delete it the next time."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=Path("runs/quickstart"), help="folder for model, runs and results")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    args = parser.parse_args()
    started = time.perf_counter()
    clear(args.dir)
    stage("make the model", [str(HERE / "make_model.py"), str(args.dir / "model"), "--seed", str(args.seed)])
    for name, source in (("warmup-1", "model"), ("warmup-2", "warmup-1")):
        stage(f"cold start, {name}", command(args, "sft", name, source))
    # Two processes of one thread each: the control needs no second machine and no second ten minutes.
    log = args.dir / "no-tools.log"
    with log.open("w") as output:
        arguments = command(args, "train", "control", "warmup-2", run="no-tools")
        say("train without tools, as control", arguments, f"; its output goes to {log}")
        control = subprocess.Popen([sys.executable, *arguments], stdout=output, stderr=subprocess.STDOUT)
        try:
            stage("train with the calculator", command(args, "train", "grpo", "warmup-2", run="tools"))
            status = control.wait()
        finally:
            control.terminate()
    if status:
        print(log.read_text()[-3000:], file=sys.stderr)
        raise SystemExit(f"the control run failed; its output is in {log}")
    stage("report", ["-m", "toolrl", "report", str(args.dir / "tools"), "--compare", str(args.dir / "no-tools")])
    finish(args, time.perf_counter() - started)
    return 0


def clear(folder: Path) -> None:
    """An empty folder; only what an earlier quickstart left is deleted."""
    if folder.exists() and not (folder.is_dir() and ((folder / MARK).exists() or not any(folder.iterdir()))):
        raise SystemExit(f"{folder} holds what this script didn't make; delete it, or name another folder by --dir")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).touch()


def command(args: argparse.Namespace, verb: str, config: str, source: str, run: str | None = None) -> list[str]:
    """The arguments of one toolrl command on a config of this folder."""
    values = {
        "model.path": args.dir / source,
        "run.dir": args.dir,
        "run.name": run or config,
        "seed": args.seed,
        "device": args.device,
    }
    return toolrl(verb, HERE / f"{config}.yaml", values)


def finish(args: argparse.Namespace, seconds: float) -> None:
    """Print the table and write summary.json."""
    tools, control = evaluations(args.dir / "tools"), evaluations(args.dir / "no-tools")
    best_control = max(line["accuracy"] for line in control)
    summary = {
        "accuracy_start": tools[0]["accuracy"],
        "accuracy_tools": tools[-1]["accuracy"],
        "accuracy_no_tools": control[-1]["accuracy"],
        "accuracy_no_tools_best": best_control,
        "calls_per_answer_start": tools[0]["calls/mean"],
        "calls_per_answer_tools": tools[-1]["calls/mean"],
        "seed": args.seed,
        "seconds": round(seconds, 1),
        "report": str(args.dir / "tools" / "report.html"),
    }
    (args.dir / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print("\nHeld-out tasks, sampled at temperature 1")
    print(f"{'':28}{'accuracy':>10}{'calls per answer':>20}")
    for title, line in (("at the start", tools[0]), ("after GRPO with tools", tools[-1]),
                        ("after GRPO without tools", control[-1])):  # fmt: skip
        print(f"{title:28}{line['accuracy']:>10.1%}{line['calls/mean']:>20.2f}")
    print(f"\nBest evaluation without tools: {best_control:.1%}. Took {seconds:.0f} s.")
    print(f"Report:  {summary['report']}\nSummary: {args.dir / 'summary.json'}")


if __name__ == "__main__":
    sys.exit(main())
