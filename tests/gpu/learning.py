"""The quickstart's task on the device: ten deterministic steps, and the same killed and resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from checkout import ROOT
from device import device
from figures import Figures

QUICKSTART = ROOT / "docs" / "examples" / "quickstart"
LIMIT = 400.0
"""Seconds that a command may take."""


def learning(figures: Figures, dry: bool) -> None:
    sys.path.insert(0, str(ROOT / "tests" / "batteries"))
    import kill_battery as battery

    battery.STEPS = 2 if dry else 10
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _python(str(QUICKSTART / "make_model.py"), str(folder / "model"))
        source = "model"
        for stage in ("warmup-1", "warmup-2"):
            values = {"model.path": folder / source, "run.dir": folder, "device": device(dry), "observers": "[]"}
            if dry:
                values |= {"sft.steps": 2, "sft.batch_size": 4, "sft.probe": "null", "sft.warmup_steps": 0}
            sets = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
            _python("-m", "toolrl", "sft", str(QUICKSTART / f"{stage}.yaml"), *sets)
            source = stage
        (folder / "config.yaml").write_text(yaml.safe_dump(_config(folder, source, battery.STEPS, dry)))
        started = time.perf_counter()
        processes = {run: battery.train(folder, run) for run in ("whole", "killed")}
        _kill_after(processes["killed"], folder / "killed" / "checkpoints" / f"step-{battery.STEPS // 2:06d}")
        processes["again"] = battery.train(folder, "killed")
        for run in ("whole", "again"):
            if processes[run].wait(LIMIT):
                log = folder / ("whole.log" if run == "whole" else "killed.log")
                raise RuntimeError(log.read_text()[-800:])
        found = battery.differences(folder / "whole", folder / "killed")
        figures.put("differences of a killed and resumed run", len(found), first=found[:3])
        lines = [json.loads(line) for line in (folder / "whole" / "metrics.jsonl").read_text().splitlines()]
        before, after = (line for line in lines if line["kind"] == "eval")
        taken = time.perf_counter() - started
        for name, line in (("after the cold start", before), ("after ten steps", after)):
            figures.put(f"accuracy {name}", line["accuracy"], calls=line["calls/mean"], seconds=taken)


def _config(folder: Path, source: str, steps: int, dry: bool) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((QUICKSTART / "grpo.yaml").read_text())
    config |= {"model": {"path": str(folder / source)}, "run": {"dir": str(folder)}, "observers": []}
    config |= {"device": str(device(dry)), "deterministic": True, "evaluation": {"every": steps}}
    config["trainer"] |= {"steps": steps, "save_every": 1}
    if dry:
        config["trainer"]["prompts_per_step"] = 2
        config["data"]["eval"]["options"]["size"] = 4
    return config


def _python(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, timeout=LIMIT, stdout=subprocess.DEVNULL)


def _kill_after(process: subprocess.Popen[bytes], checkpoint: Path) -> None:
    until = time.monotonic() + LIMIT
    while process.poll() is None and not checkpoint.exists():
        if time.monotonic() > until:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if not checkpoint.exists():
        raise RuntimeError(f"the run that is to be killed never wrote {checkpoint.name}")
