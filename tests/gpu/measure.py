"""Measure toolrl on a machine with one GPU, in four calls of nine minutes.

    python tests/gpu/measure.py 1            # the card, the start-up checks in bfloat16, updates at 16k and 65k tokens
    python tests/gpu/measure.py 2            # attention over trees against other kernels, at 16k and 64k tokens
    python tests/gpu/measure.py 3            # compiled layers, a sharded model, copies between host and processes
    python tests/gpu/measure.py 4            # the embedded engine, a killed and resumed run, ten steps of learning
    python tests/gpu/measure.py 1 --dry-run  # the same code on a CPU with tiny shapes; its figures mean nothing

Models have random weights and the shapes of Qwen3; nothing is downloaded. Each figure is printed beside what is
expected of an H200, and appended to OUT/figures.jsonl at once. A measurement is a process of its own: one that fails,
hangs or runs out of memory takes no other along. One that no longer fits into the call's time is left out.

toolrl needn't be installed: its sources are taken from the checkout then, and packages that are missing from
`--wheels FOLDER`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from figures import Figures  # noqa: E402 - beside this file


class Measurement(NamedTuple):
    name: str
    """Module and function, which takes `Figures` and whether this is a dry run."""
    seconds: float
    """With less left of the call's time it isn't begun."""


CALLS = {
    1: [
        Measurement("card:card", 30),
        Measurement("card:gates", 45),
        Measurement("updates:small", 90),
        Measurement("updates:adapter", 60),
        Measurement("updates:large", 60),
    ],
    2: [Measurement("kernels:two_to_one", 120), Measurement("kernels:four_to_one", 120)],
    3: [
        Measurement("transfers:pinned", 30),
        Measurement("transfers:between_processes", 45),
        Measurement("updates:sharded", 60),
        Measurement("updates:compiled_small", 90),
        Measurement("updates:compiled_large", 90),
    ],
    4: [Measurement("rollout:decode", 90), Measurement("learning:learning", 120)],
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("call", type=int, choices=CALLS)
    parser.add_argument("--out", type=Path, default=Path("measured"), help="the folder of figures.jsonl")
    parser.add_argument("--minutes", type=float, default=9.0, help="the call's time")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels of packages that are missing here")
    parser.add_argument("--only", help="one measurement of the call, such as updates:small")
    parser.add_argument("--dry-run", action="store_true", help="on a CPU, with tiny shapes")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    names = [measurement.name for measurement in CALLS[args.call]]
    if args.only not in (None, *names):
        parser.error(f"--only: call {args.call} has {', '.join(names)}, not {args.only!r}")
    args.out.mkdir(parents=True, exist_ok=True)
    figures = Figures(args.call, args.out / "figures.jsonl")
    if args.child:
        return child(args.only, figures, dry=args.dry_run)
    # So that what runs is ended with this process; it has a session of its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    deadline = time.monotonic() + 60 * args.minutes
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ) | ({"OMP_NUM_THREADS": "1"} if args.dry_run else {})
        if args.wheels is not None or importlib.util.find_spec("toolrl") is None:
            from checkout import import_paths

            paths = [*import_paths(Path(folder), args.wheels), os.environ.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        for measurement in CALLS[args.call]:
            left = deadline - time.monotonic()
            if args.only not in (None, measurement.name):
                continue
            if left < measurement.seconds and not args.dry_run:
                figures.miss(measurement.name, f"it may take {measurement.seconds:g} s, and {left:.0f} s are left")
                continue
            command = [str(HERE / "measure.py"), str(args.call), "--child", "--only", measurement.name]
            command += ["--out", str(args.out), *(["--dry-run"] if args.dry_run else [])]
            reason = ended([sys.executable, *command], environment, left)
            if reason:
                figures.miss(measurement.name, reason)
                failed = True
    return int(failed)


def ended(command: Sequence[str], environment: dict[str, str], seconds: float) -> str:
    """Run a process with all that it starts, at most so long; why it ended early, or an empty text."""
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"it ran past the {seconds:.0f} s that were left"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}" if status else ""


def child(name: str, figures: Figures, *, dry: bool) -> int:
    """One measurement, in this process."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    module, function = name.split(":")
    try:
        getattr(importlib.import_module(module), function)(figures, dry)
    except Exception as error:  # noqa: BLE001 - its reason is kept with the figures
        traceback.print_exc()
        figures.miss(name, f"{type(error).__name__}: {error}"[:1000])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
