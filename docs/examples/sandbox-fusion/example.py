"""verl's Sandbox Fusion guide from nothing: problems, a small model, cold start, verl's start script converted, GRPO.

    python docs/examples/sandbox-fusion/example.py [--dir runs/sandbox-fusion] [--seed 0]

What a user of verl has is here as they have it: the start script `run_sandbox_fusion.sh`, the tool YAML
`sandbox_fusion_tool_config.yml` with the guide's settings, and parquet files as verl's preprocessing writes them. A
server with the API of Sandbox Fusion is started on this machine, `toolrl verl convert` makes a config of the script,
and `toolrl train` runs it.

Each stage is a command that can be run by hand; this script prints it and runs it. At the end it prints how the model
did before and after, what the limiter did, lines of the rollout dump, and where the report is. A few minutes on a CPU.
`--sft-steps` and `--steps` shorten it to see it run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from stages import ACCURACY, served, show, stage, toolrl

HERE = Path(__file__).parent
DUMPED = 160
"""Characters of a dumped text that are shown."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--dir", type=Path, default=Path("runs/sandbox-fusion"), help="folder for problems, model, dumps and runs"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sft-steps", type=int, help="steps of the cold start, else those of warmup.yaml")
    parser.add_argument("--steps", type=int, help="steps of GRPO, else those of run_sandbox_fusion.sh")
    args = parser.parse_args()
    work, seed = args.dir, ["--seed", str(args.seed)]
    stage("make the problems", [str(HERE / "make_data.py"), str(work / "problems"), *seed])
    stage("make the model", [str(HERE / "make_model.py"), str(work / "model"), *seed])
    server = ["-m", "toolrl", "sandbox-fusion", "serve", "--port", "0", "--languages", "python"]
    with served("serve a sandbox", server, ready="serving on ") as url:
        # verl's files name these three, and so does what is made of them.
        for name, value in (("SANDBOX_FUSION_URL", url), ("HERE", str(HERE)), ("WORK", str(work))):
            os.environ[name] = value
            print(f"   export {name}={value}", flush=True)
        config = work / "grpo.yaml"
        both = {"run.dir": work, "seed": args.seed}
        warmup = {**both, "sft.steps": args.sft_steps}
        stage("cold start", toolrl("sft", HERE / "warmup.yaml", warmup, "--overwrite"))
        script = str(HERE / "run_sandbox_fusion.sh")
        stage("convert verl's script", ["-m", "toolrl", "verl", "convert", script, "--out", str(config), "--force"])
        stage("check what came of it", ["-m", "toolrl", "config", "check", str(config)])
        grpo = {**both, "threads": 1, "trainer.steps": args.steps}
        stage("GRPO", toolrl("train", config, grpo, "--overwrite"))
    stage("report", ["-m", "toolrl", "report", str(work / "grpo")])
    show(work / "grpo", "Held-out problems", ACCURACY | {"calls/mean": ("programs run", ".2f")})
    dumped(work)
    return 0


def dumped(work: Path) -> None:
    """What the limiter did, and the first lines of the dump."""
    lines = [json.loads(line) for line in (work / "grpo" / "metrics.jsonl").read_text().splitlines()]
    # A step in which no program was run has no such metric.
    waits = [line.get("tool/code_interpreter/queue_seconds", 0.0) for line in lines if line["kind"] == "train"]
    print(f"\nrate_limit: 4 — an episode's programs waited {sum(waits) / len(waits):.2f} s for their place, on average")
    dumps = sorted((work / "dumps").glob("*.jsonl"), key=lambda path: int(path.stem))
    for path in (dumps[0], dumps[-1]):
        row = json.loads(path.read_text().splitlines()[0])
        print(f"\n{path}, first of its lines:")
        for key in ("input", "output", "gts", "score", "step"):
            print(f"  {key:8}{str(row[key])[:DUMPED]!r}")


if __name__ == "__main__":
    sys.exit(main())
