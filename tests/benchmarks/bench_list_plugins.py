"""How long `toolrl list-plugins` takes over a bare interpreter, with everything installed that this interpreter has.

    python tests/benchmarks/bench_list_plugins.py --rounds 20

Commands are started in turn, forwards and backwards, so that a machine that slows down slows all of them alike. Printed
are medians of the wall time, and of what it is above `python -c pass`; the aim is at most 120 ms. Python keeps its
bytecode, as it does for users, also where PYTHONDONTWRITEBYTECODE is set: else each start compiles what is imported.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

BARE, OURS = "python -c pass", "toolrl list-plugins"
AIM_MS = 120


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="in both orders each")
    rounds = parser.parse_args().rounds
    toolrl = shutil.which("toolrl", path=str(Path(sys.executable).parent))
    if toolrl is None:
        sys.exit(f"toolrl isn't installed beside {sys.executable}")
    commands = {
        BARE: [sys.executable, "-c", "pass"],
        OURS: [toolrl, "list-plugins"],
        f"{OURS} --json": [toolrl, "list-plugins", "--json"],
        "pip list": [sys.executable, "-m", "pip", "list"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    order = list(commands)
    for number in range(2 * rounds + 1):
        for name in order:
            start = time.perf_counter()
            subprocess.run(commands[name], check=True, capture_output=True, env=environment)
            if number:  # The first round writes bytecode and fills the disk's cache.
                times[name].append((time.perf_counter() - start) * 1000)
        order.reverse()
    bare = statistics.median(times[BARE])
    print(f"Python {platform.python_version()}\n{'command':<28} {'ms':>8} {'above bare':>11}")
    for name, values in times.items():
        print(f"{name:<28} {statistics.median(values):>8.1f} {statistics.median(values) - bare:>11.1f}")
    return int(statistics.median(times[OURS]) - bare > AIM_MS)


if __name__ == "__main__":
    sys.exit(main())
