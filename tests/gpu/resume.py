"""A deterministic run on the device, killed and resumed, against an uninterrupted one; and one that is repeated.

The run is that of `tests/batteries/kill_battery.py`, with its tiny model: the question is whether the device's kernels
give the same bits again.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from settings import ROOT, Settings

WAIT = 200.0
"""Seconds that a run may take."""


def run(settings: Settings) -> dict[str, Any]:
    import shutil

    import yaml

    sys.path.insert(0, str(ROOT / "tests" / "batteries"))
    import kill_battery as battery

    folder = Path(settings.work) / "resume"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make = ROOT / "docs" / "examples" / "quickstart" / "make_model.py"
    subprocess.run([sys.executable, str(make), str(folder / "model")], check=True, stdout=subprocess.DEVNULL)
    environment = {**battery.CONFIG["environments"]["default"], "rewards": ["exact"]}
    config = {
        **battery.CONFIG, "environments": {"default": environment}, "model": {"path": str(folder / "model")},
        "run": {"dir": str(folder)},
        "device": settings.device,
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    _finish(battery.train(folder, "whole"), folder / "whole.log")
    _kill_after(battery.train(folder, "killed"), folder / "killed", step=2)
    at = battery.moment(folder / "killed")
    _finish(battery.train(folder, "killed"), folder / "killed.log")
    _finish(battery.train(folder, "repeated"), folder / "repeated.log")
    return {
        "killed_after": at,
        "differences": {name: battery.differences(folder / "whole", folder / name) for name in ("killed", "repeated")},
    }


def _finish(process: subprocess.Popen[bytes], log: Path) -> None:
    try:
        status = process.wait(WAIT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise RuntimeError(f"a run took more than {WAIT:.0f} s: {log.read_text()[-1000:]}") from None
    if status:
        raise RuntimeError(f"a run failed: {log.read_text()[-1500:]}")


def _kill_after(process: subprocess.Popen[bytes], folder: Path, step: int) -> None:
    """End a run by SIGKILL once it has a checkpoint of the step."""
    until = time.monotonic() + WAIT
    while process.poll() is None and time.monotonic() < until:
        if (folder / "checkpoints" / f"step-{step:06d}").exists():
            process.send_signal(signal.SIGKILL)
            process.wait()
            return
        time.sleep(0.05)
    if process.poll() is None:
        process.kill()
    raise RuntimeError(f"the run that is to be killed ended before, or never wrote step {step}")


def headline(figures: dict[str, Any]) -> str:
    apart = [name for name, found in figures["differences"].items() if found]
    if not apart:
        return f"the same bit for bit, killed after {figures['killed_after']} and resumed, and repeated"
    return f"not the same: {', '.join(apart)}: {'; '.join(figures['differences'][apart[0]][:3])}"
