"""Train a small model in two OpenEnv environments at once; on a CPU in a few minutes.

What it needs, and how it is run:

    pip install 'toolrl-plugin-openenv[server]'
    python docs/examples/openenv/two_environments.py [--seed 0] [--dir runs/openenv]

OpenEnv needs an mcp below 2. Where that doesn't fit beside what else there is, only the servers need it: `python -m
venv servers && servers/bin/pip install openenv`, then `--server-python servers/bin/python`. `--sft-steps` and `--steps`
shorten the training, to see it run.

What it does:

    1. start two OpenEnv servers on this machine: a vault with tools, and a guessing game in words
    2. make a Qwen3 model of 0.64M random parameters, and the data
    3. `toolrl sft`: the form of both environments, played badly
    4. `toolrl train`: GRPO on tasks of both kinds, routed by their `task_type`
    5. a table of before and after, summary.json and the report
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from toolrl.runs.folder import RunFolder

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from stages import stage, toolrl

HERE = Path(__file__).parent
MAKE_MODEL = HERE.parent / "quickstart" / "make_model.py"
KINDS = ("vault", "guess")
START_SECONDS = 180


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=Path("runs/openenv"), help="folder for model, data and runs")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--sft-steps", type=int, help="steps of the cold start, else those of warmup.yaml")
    parser.add_argument("--steps", type=int, help="steps of GRPO, else those of grpo.yaml")
    parser.add_argument("--server-python", default=sys.executable, help="what runs the servers, else this Python")
    args = parser.parse_args()
    started = time.perf_counter()
    shutil.rmtree(args.dir, ignore_errors=True)
    args.dir.mkdir(parents=True)
    with ExitStack() as stack:
        servers = [stack.enter_context(Server(kind, args.dir, args.server_python)) for kind in KINDS]
        environment = {**os.environ, **{f"{server.kind.upper()}_PORT": str(server.port) for server in servers}}
        stage("make the model", [str(MAKE_MODEL), str(args.dir / "model"), "--seed", str(args.seed)])
        stage("make the data", [str(HERE / "make_data.py"), str(args.dir / "data")])
        for server in servers:
            server.wait()
        demos, steps = {"sft.data.options.path": args.dir / "data" / "demos.jsonl"}, {"sft.steps": args.sft_steps}
        stage("cold start", command(args, "sft", "warmup", {**demos, **steps}), environment)
        data = {f"data.{split}.options.path": args.dir / "data" / f"{split}.jsonl" for split in ("train", "eval")}
        steps = {"trainer.steps": args.steps}
        stage("train in both environments", command(args, "train", "grpo", {**data, **steps}), environment)
    stage("report", ["-m", "toolrl", "report", str(args.dir / "grpo")])
    finish(args, time.perf_counter() - started)
    return 0


class Server:
    """The server of one environment, in a process that ends with the block."""

    def __init__(self, kind: str, folder: Path, python: str) -> None:
        self.kind = kind
        self._python = python
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._log = folder / f"{kind}.log"

    def __enter__(self) -> Server:
        print(f"== start the server of {self.kind}: http://127.0.0.1:{self.port}", flush=True)
        arguments = [self._python, str(HERE / "servers.py"), self.kind, str(self.port)]
        with self._log.open("w") as output:
            self._process = subprocess.Popen(arguments, stdout=output, stderr=subprocess.STDOUT)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait()

    def wait(self) -> None:
        """Until it listens."""
        end = time.monotonic() + START_SECONDS
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > end:
                print(self._log.read_text()[-3000:], file=sys.stderr)
                raise SystemExit(f"the server of {self.kind} doesn't start; its output is in {self._log}")
            time.sleep(0.2)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True


def command(args: argparse.Namespace, verb: str, config: str, more: dict[str, Any]) -> list[str]:
    """The arguments of one toolrl command on a config of this folder."""
    source = args.dir / ("model" if verb == "sft" else "warmup")
    values = {"model.path": source, "run.dir": args.dir, "seed": args.seed, "device": args.device, **more}
    return toolrl(verb, HERE / f"{config}.yaml", values)


def rewards(folder: RunFolder, step: int) -> dict[str, float]:
    """The mean reward of an evaluation's episodes by environment."""
    found = defaultdict(list)
    for stored in folder.episodes(kind="eval", steps=[step]):
        found[stored.episode.environment].append(stored.episode.reward)
    return {kind: sum(found[kind]) / len(found[kind]) for kind in KINDS}


def finish(args: argparse.Namespace, seconds: float) -> None:
    """Print the table and write summary.json."""
    folder = RunFolder.open(args.dir / "grpo")
    steps = [line.step for line in folder.metrics_lines("eval")]
    before, after = rewards(folder, steps[0]), rewards(folder, steps[-1])
    print("\nMean reward of held-out tasks, sampled at temperature 1")
    print(f"{'':28}{'before':>10}{'after':>10}")
    for kind in KINDS:
        print(f"{kind:28}{before[kind]:>10.2f}{after[kind]:>10.2f}")
    report = str(args.dir / "grpo" / "report.html")
    summary = {"before": before, "after": after, "seed": args.seed, "seconds": round(seconds, 1), "report": report}
    (args.dir / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(f"\nTook {seconds:.0f} s.\nReport:  {report}\nSummary: {args.dir / 'summary.json'}")


if __name__ == "__main__":
    sys.exit(main())
