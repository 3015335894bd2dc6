"""Picks the sessions of `nox` that continuous integration runs beside its fixed ones, in turns.

The files of a commit decide whose turn it is. `python .ci/rotation.py` prints all turns, and which one it is now.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

ROOT = Path(__file__).parent.parent

ALWAYS = ("core", "contracts", "older_mcp", "site", "lint", "types")
"""Sessions that follow `tests` every time."""
LEFT_OUT = {
    "slow": "hours",
    "harnesses": "the newest packages of others",
    "bench": "measures",
    "quickstart": "trains; `tests` runs a short one",
    "vllm": "several gigabytes",
    "cuda_contract": "several gigabytes",
    "gpu": "needs a GPU",
    "gpu_measure": "needs a GPU",
}
"""Sessions that continuous integration never runs, and why."""
BUDGET = 600
"""Seconds for the sessions of one turn on two cores; a session that takes longer has a turn of its own."""
SECONDS = {
    "constraints": 60,
    "docs": 120,
    "release": 150,
    "plugin(gateway)": 90,
    "plugin(mcp)": 90,
    "plugin(objectives)": 90,
    "plugin(openenv)": 120,
    "plugin(python)": 120,
    "plugin(qwen-agent)": 120,
    "plugin(ray)": 240,
    "plugin(renderers)": 90,
    "plugin(rlfactory)": 120,
    "plugin(sandbox-fusion)": 90,
    "plugin(start)": 120,
    "plugin(torch)": 300,
    "plugin(transformers)": 150,
    "plugin(verifiers)": 120,
    "plugin(verl)": 120,
    "plugin(vllm)": 120,
}
"""Estimates in seconds: the sessions of the rotation that aren't a plugin's, and plugins that take long."""
DEFAULT = 45
"""Estimate for a plugin that isn't in the table."""


def sessions(root: Path = ROOT) -> dict[str, int]:
    """Return every session of the rotation with its estimate; a new plugin is in it without an edit here."""
    plugins = sorted(f"plugin({path.parent.name})" for path in root.glob("plugins/*/pyproject.toml"))
    return {name: SECONDS.get(name, DEFAULT) for name in dict.fromkeys([*plugins, *SECONDS])}


def turns(estimates: dict[str, int]) -> list[list[str]]:
    """Divide the sessions into turns of at most BUDGET seconds: each goes, longest first, where it fits."""
    filled: list[tuple[int, list[str]]] = []
    for name in sorted(estimates, key=lambda name: (-estimates[name], name)):
        for place, (seconds, names) in enumerate(filled):
            if seconds + estimates[name] <= BUDGET:
                filled[place] = (seconds + estimates[name], [*names, name])
                break
        else:
            filled.append((estimates[name], [name]))
    return [names for _, names in filled]


def number(root: Path = ROOT) -> int:
    """Return a digest of the Python files: the same in every copy of a commit, also without git's history."""
    files = sorted(path for folder in ("core", "plugins", "tests") for path in (root / folder).rglob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).digest()
    return int.from_bytes(digest[:8], "big")


def this_landing(root: Path = ROOT) -> list[str]:
    """Return the sessions whose turn it is at this commit."""
    every = turns(sessions(root))
    return every[number(root) % len(every)]


if __name__ == "__main__":
    for names in turns(sessions()):
        print("now" if names == this_landing() else "   ", *names)
