"""A real model on real problems: SmolLM2-135M-Instruct with the calculator on GSM8K, as the example's config has it.

Its chat template ignores `tools=`, so toolrl has to tell the model of its tool by itself. TOOLRL_SMOLLM2 names the
model's folder, TOOLRL_GSM8K that of the data.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

MODEL, DATA = os.environ.get("TOOLRL_SMOLLM2"), os.environ.get("TOOLRL_GSM8K")
CONFIG = str(Path(__file__).resolve().parents[2] / "docs" / "examples" / "gsm8k" / "grpo.yaml")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (MODEL and DATA), reason="set TOOLRL_SMOLLM2 and TOOLRL_GSM8K to the folders of both"),
]


def test_an_evaluation_tells_the_model_of_its_tool(workplace: Any) -> None:
    env = {"MODEL": str(MODEL), "GSM8K": str(DATA)}
    settings = ["rollout.max_turn_tokens=64", "observers=[]", "device=cpu", "evaluation.tasks=6", "run.name=smollm2"]
    sets = (part for value in settings for part in ("--set", value))
    done = workplace.toolrl("eval", CONFIG, "--json", *sets, env=env)
    assert done.returncode == 0, done.stderr
    assert 0.0 <= done.json()["accuracy"] <= 1.0
    episodes = [item.episode for item in workplace.run("smollm2").episodes(kind="eval")]
    assert len(episodes) == 6

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    for episode in episodes:
        prompt = tokenizer.decode(episode.ids[: episode.prompt_length])
        assert '"name": "calculator"' in prompt
        assert "<tool_call>" in prompt
        assert episode.task.messages[-1].content in prompt
