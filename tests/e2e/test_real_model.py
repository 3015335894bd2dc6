"""A real model on real problems: SmolLM2-135M-Instruct with the calculator on GSM8K, as the example's config has it.

Its chat template ignores `tools=`, so toolrl has to tell the model of its tool by itself. Takes minutes and 98 MB of
download for the model: `nox -s slow` runs it where the folder `shared` with the data and the model's script is.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("TOOLRL_SHARED") or ROOT.parent / "shared")
CONFIG = str(ROOT / "docs" / "examples" / "gsm8k" / "grpo.yaml")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("TOOLRL_SLOW"), reason="takes minutes; `nox -s slow` runs it"),
    pytest.mark.skipif(
        not (SHARED / "data" / "gsm8k").is_dir() or not (SHARED / "models" / "get_model.py").is_file(),
        reason=f"{SHARED} lacks data/gsm8k or models/get_model.py; set TOOLRL_SHARED to the folder that has them",
    ),
]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder: that of TOOLRL_SMOLLM2, or made anew."""
    if given := os.environ.get("TOOLRL_SMOLLM2"):
        return Path(given)
    folder = tmp_path_factory.mktemp("models") / "smollm2"
    script = [sys.executable, str(SHARED / "models" / "get_model.py"), "model", "smollm2-135m-instruct", str(folder)]
    made = subprocess.run(script, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"the model can't be made here: {made.stderr.strip().splitlines()[-1:]}")
    return folder


def short(*arguments: str) -> list[str]:
    """A command on the example, with turns of 64 tokens so that it takes minutes and not an hour."""
    sets = ["rollout.max_turn_tokens=64", "observers=[]", "device=cpu"]
    return [*arguments, CONFIG, "--json", *(part for value in sets for part in ("--set", value))]


def test_an_evaluation_tells_the_model_of_its_tool(smollm2: Path, workplace: Any) -> None:
    env = {"MODEL": str(smollm2), "GSM8K": str(SHARED / "data" / "gsm8k")}
    arguments = short("eval")
    done = workplace.toolrl(*arguments, "--set", "evaluation.tasks=6", "--set", "run.name=smollm2-eval", env=env)
    assert done.returncode == 0, done.stderr
    assert 0.0 <= done.json()["accuracy"] <= 1.0
    episodes = [item.episode for item in workplace.run("smollm2-eval").episodes(kind="eval")]
    assert len(episodes) == 6

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    for episode in episodes:
        prompt = tokenizer.decode(episode.ids[: episode.prompt_length])
        assert '"name": "calculator"' in prompt
        assert "<tool_call>" in prompt
        assert episode.task.messages[-1].content in prompt


def test_training_steps_are_finite_and_exact(smollm2: Path, workplace: Any) -> None:
    env = {"MODEL": str(smollm2), "GSM8K": str(SHARED / "data" / "gsm8k")}
    sets = ["trainer.steps=2", "trainer.prompts_per_step=2", "run.name=smollm2-train", "data.eval=null"]
    arguments = [*short("train"), *(part for value in sets for part in ("--set", value))]
    done = workplace.toolrl(*arguments, env=env)
    assert done.returncode == 0, done.stderr
    lines = workplace.run("smollm2-train").metrics_lines("train")
    assert [line.step for line in lines] == [1, 2]
    for line in lines:
        assert all(math.isfinite(value) for value in line.metrics.values())
        assert 0.0 < line.metrics["logprob_mismatch/max"] < 1e-4
