"""How long `toolrl list-plugins` takes over a bare interpreter, with everything installed that this interpreter has.

Commands are started in turn, forwards and backwards, so that a machine that slows down slows all of them alike. Printed
are medians of the wall time and of what it is above `python -c pass`; the aim is 120 ms above. Peers that list their
plugins are measured too where they are installed: `llm plugins`, `datasette plugins`, `pytest --version`-like listings
can be given with --peer.

    python tests/benchmarks/bench_list_plugins.py --rounds 20 --peer "llm plugins"
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

BARE = "python -c pass"
OURS = "toolrl list-plugins"
JSON = "toolrl list-plugins --json"
AIM_MS = 120


def commands(peers: list[str]) -> dict[str, list[str]]:
    """What is measured, by name. Installed peers are found by themselves."""
    beside = Path(sys.executable).parent
    toolrl = shutil.which("toolrl", path=str(beside))
    if toolrl is None:
        sys.exit(f"toolrl isn't installed beside {sys.executable}")
    found = {
        BARE: [sys.executable, "-c", "pass"],
        OURS: [toolrl, "list-plugins"],
        JSON: [toolrl, "list-plugins", "--json"],
        "pip list": [sys.executable, "-m", "pip", "list"],
    }
    for name in ("llm", "datasette"):
        program = shutil.which(name, path=str(beside)) or shutil.which(name)
        if program:
            found[f"{name} plugins"] = [program, "plugins"]
    for peer in peers:
        found[peer] = shlex.split(peer)
    return found


def measure(rounds: int, todo: dict[str, list[str]]) -> dict[str, dict[str, list[float]]]:
    """Milliseconds by command and order."""
    times: dict[str, dict[str, list[float]]] = {name: {"forwards": [], "backwards": []} for name in todo}
    for command in todo.values():  # Once unmeasured: compiled files and the disk's cache.
        subprocess.run(command, check=True, capture_output=True)
    for _ in range(rounds):
        for order, names in (("forwards", list(todo)), ("backwards", list(reversed(todo)))):
            for name in names:
                start = time.perf_counter()
                subprocess.run(todo[name], check=True, capture_output=True)
                times[name][order].append((time.perf_counter() - start) * 1000)
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="of both orders each")
    parser.add_argument("--peer", action="append", default=[], help="another command to measure")
    args = parser.parse_args()
    todo = commands(args.peer)
    times = measure(args.rounds, todo)
    bare = {order: statistics.median(values) for order, values in times[BARE].items()}
    listed = json.loads(subprocess.run(todo[JSON], capture_output=True, check=True).stdout)
    print(f"Python {platform.python_version()}, {len(listed['plugins'])} plugins, {args.rounds} rounds in both orders")
    print(f"{'command':<28} {'forwards ms':>12} {'above bare':>11} {'backwards ms':>13} {'above bare':>11}")
    for name, by_order in times.items():
        cells = []
        for order in ("forwards", "backwards"):
            median = statistics.median(by_order[order])
            cells.append((median, median - bare[order]))
        (ahead, ahead_over), (back, back_over) = cells
        print(f"{name:<28} {ahead:>12.1f} {ahead_over:>11.1f} {back:>13.1f} {back_over:>11.1f}")
    worst = max(statistics.median(times[OURS][order]) - bare[order] for order in bare)
    print(f"\n{OURS}: {worst:.1f} ms above a bare interpreter; the aim is at most {AIM_MS} ms")


if __name__ == "__main__":
    main()
