"""Questions about videos from nothing: videos, two models that look at frames, cold start, GRPO with four tools.

    pip install av ./docs/examples/video/tools
    python docs/examples/video/example.py [--dir runs/video] [--seed 0]

Each stage is a command that can be run by hand; this script prints it and runs it. At the end it prints how the model
did before and after, and where the report is. Some five minutes on a CPU. `--viewer-steps`, `--sft-steps` and `--steps`
shorten it, and `--videos` and `--demos` make less data, to see it run.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from stages import ACCURACY, show, stage, toolrl

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=Path("runs/video"), help="folder for videos, models and runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--videos", type=int, default=96, help="videos to train on; a quarter as many are held out")
    parser.add_argument("--demos", type=int, default=1024, help="demonstrations of the cold start")
    parser.add_argument("--viewer-steps", type=int, default=400, help="steps that teach the detector the shapes")
    parser.add_argument("--sft-steps", type=int, help="steps of the cold start, else those of warmup.yaml")
    parser.add_argument("--steps", type=int, help="steps of GRPO, else those of grpo.yaml")
    args = parser.parse_args()
    if importlib.util.find_spec("video_tools") is None:
        print(f"The tools aren't installed: pip install {HERE / 'tools'}", file=sys.stderr)
        return 1
    tasks, viewers, seed = args.dir / "tasks", args.dir / "viewers", ["--seed", str(args.seed)]
    count = ["--train", str(args.videos), "--test", str(max(1, args.videos // 4)), "--demos", str(args.demos)]
    stage("make the videos", [str(HERE / "make_data.py"), str(tasks), *seed, *count])
    teach = ["--steps", str(args.viewer_steps)]
    stage("make detector and captioner", [str(HERE / "make_viewers.py"), str(viewers), *seed, *teach])
    stage("make the model", [str(HERE / "make_model.py"), str(args.dir / "model"), *seed])
    tools = "environments.default.tools"
    both = {
        "data.eval.options.path": tasks / "test.jsonl",
        f"{tools}[0].options.root": tasks,
        f"{tools}[1].options.model": viewers / "detector",
        f"{tools}[2].options.model": viewers / "captioner",
        "run.dir": args.dir,
        "seed": args.seed,
    }
    warmup = {"model.path": args.dir / "model", "sft.data.options.path": tasks / "demos.jsonl"}
    warmup |= {**both, "sft.steps": args.sft_steps}
    stage("cold start", toolrl("sft", HERE / "warmup.yaml", warmup, "--overwrite"))
    grpo = {"model.path": args.dir / "warmup", "data.train.options.path": tasks / "train.jsonl"}
    grpo |= {**both, "trainer.steps": args.steps}
    stage("GRPO with the tools", toolrl("train", HERE / "grpo.yaml", grpo, "--overwrite"))
    stage("report", ["-m", "toolrl", "report", str(args.dir / "grpo")])
    show(args.dir / "grpo", "Held-out videos", ACCURACY)
    return 0


if __name__ == "__main__":
    sys.exit(main())
