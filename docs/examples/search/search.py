"""Train a small model to search before it answers, on a CPU in a few minutes.

    python docs/examples/search/search.py [--seed 0] [--dir runs/search] [--through index|server|mcp]
                                          [--sft-steps 400] [--steps 20]

Each stage is a command that can be run by hand; this script prints it, runs it and shows what came of it:

    1. make a corpus of invented facts, questions about it, and a model of 0.6M random parameters
    2. `toolrl search index`: a BM25 index of the corpus
    3. `toolrl sft` twice: the model learns the form of a search, then to guess mostly
    4. `toolrl train`: GRPO with the tool `search` and the reward `search_r1`, step rewards included
    5. reward before and after, summary.json and the report

By default the run searches the index itself. With `--through server` it asks `toolrl search serve`, as where several
runs share an index. With `--through mcp` it calls the MCP tool `query_rag` of query_rag_server.py, as RLFactory has it,
which asks that server. `--sft-steps` and `--steps` shorten it to see it run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from stages import evaluations, served, stage, toolrl

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--dir", type=Path, default=Path("runs/search"), help="folder for world, index, runs and results"
    )
    parser.add_argument("--through", choices=("index", "server", "mcp"), default="index", help="how the model searches")
    parser.add_argument("--sft-steps", type=int, help="steps of each cold start at most, else those of its YAML")
    parser.add_argument("--steps", type=int, help="steps of GRPO, else those of grpo.yaml")
    args = parser.parse_args()
    started = time.perf_counter()
    for part in ("world", "index", "warmup-1", "warmup-2", "grpo"):
        shutil.rmtree(args.dir / part, ignore_errors=True)
    world = args.dir / "world"
    tool = "query_rag" if args.through == "mcp" else "search"
    stage("make the world", [str(HERE / "make_world.py"), str(world), "--seed", str(args.seed), "--tool", tool])
    index = str(args.dir / "index")
    stage("index its corpus", ["-m", "toolrl", "search", "index", str(world / "corpus.jsonl"), "--out", index])
    both = {"run.dir": args.dir, "seed": args.seed}
    with place_to_search(args) as place:
        for name, source in (("warmup-1", world / "model"), ("warmup-2", args.dir / "warmup-1")):
            data = {"sft.data.options.path": world / f"demos-{name[-1]}.jsonl"}
            probe = {"data.eval.options.path": world / "heldout.jsonl"} if name == "warmup-1" else {}
            # A shortened cold start isn't held to what its probe asks for.
            steps = {} if args.sft_steps is None else {"sft.steps": args.sft_steps, "sft.probe": "null"}
            values = {**both, "model.path": source, **place, **data, **probe, **steps}
            stage(f"cold start, {name}", toolrl("sft", HERE / f"{name}.yaml", values))
        data = {
            f"data.{part}.options.path": world / f"{file}.jsonl"
            for part, file in (("train", "train"), ("eval", "heldout"))
        }
        values = {**both, "model.path": args.dir / "warmup-2", **place, **data, "trainer.steps": args.steps}
        stage("train", toolrl("train", HERE / "grpo.yaml", values))
    stage("report", ["-m", "toolrl", "report", str(args.dir / "grpo")])
    finish(args, time.perf_counter() - started)
    return 0


@contextmanager
def place_to_search(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What to set in a config so that its tool finds the index. Starts a server where one is wanted."""
    index = args.dir / "index"
    if args.through == "index":
        yield {"environments.default.tools[0].options.index": index}
        return
    server = ["-m", "toolrl", "search", "serve", str(index), "--port", "0"]
    with served("serve the index", server, ready=" on http") as url:
        tool: dict[str, Any] = {"use": "search", "options": {"url": url, "topk": 1}}
        if args.through == "mcp":
            started = {"command": sys.executable, "args": [str(HERE / "query_rag_server.py"), url]}
            tool = {"use": "mcp", "options": {"servers": {"search": started}, "names": "short"}}
        yield {"environments.default.tools": json.dumps([tool])}


def finish(args: argparse.Namespace, seconds: float) -> None:
    """Print the table and write summary.json."""
    names = {"reward/mean": "reward", "accuracy": "accuracy", "calls/mean": "searches per answer"}
    found = evaluations(args.dir / "grpo")
    before, after = found[0], found[-1]
    summary: dict[str, Any] = {
        title.replace(" ", "_"): {"before": before[key], "after": after[key]} for key, title in names.items()
    }
    summary.update(seed=args.seed, seconds=round(seconds, 1), report=str(args.dir / "grpo" / "report.html"))
    (args.dir / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(f"\nHeld-out questions, sampled at temperature 1\n{'':24}{'before':>10}{'after':>10}")
    for key, title in names.items():
        print(f"{title:24}{before[key]:>10.2f}{after[key]:>10.2f}")
    print(f"\nTook {seconds:.0f} s.\nReport:  {summary['report']}\nSummary: {args.dir / 'summary.json'}")


if __name__ == "__main__":
    sys.exit(main())
