"""GSM8K with the problems of few calculations alone to train on, for a model that would solve hardly any other.

    python docs/examples/gsm8k/easier.py data/gsm8k data/gsm8k-easier [--steps 3]

`train.jsonl` keeps the problems whose solution marks at most so many calculations (`<<48/2=24>>`), `test.jsonl` all.
"""

import argparse
import shutil
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("data", type=Path, help="the folder with train.jsonl and test.jsonl")
parser.add_argument("dest", type=Path, help="the folder to write")
parser.add_argument("--steps", type=int, default=3, help="calculations at most")
args = parser.parse_args()
lines = (args.data / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
easier = [line for line in lines if line.count("<<") <= args.steps]
args.dest.mkdir(parents=True, exist_ok=True)
(args.dest / "train.jsonl").write_text("".join(easier), encoding="utf-8")
shutil.copyfile(args.data / "test.jsonl", args.dest / "test.jsonl")
print(f"{args.dest}: {len(easier)} of {len(lines)} problems to train on")
