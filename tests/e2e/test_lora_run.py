"""LoRA through the command line: it learns, engine and trainer agree, and a run goes on, is evaluated, built upon."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("peft", reason="adapters need peft: pip install toolrl[lora]")

ADAPTER: dict[str, Any] = {"rank": 8, "alpha": 16}
LORA: dict[str, Any] = {
    "model": {"path": "runs/warm", "lora": ADAPTER},
    "data": {
        "train": {"use": "arithmetic", "options": {"split": "train", "size": 400, "kinds": ["tiny_sum"]}},
        "eval": {"use": "arithmetic", "options": {"split": "heldout", "size": 64, "kinds": ["tiny_sum"]}},
    },
    "algorithm": {"preset": "grpo", "group_size": 8, "kl_coef": 0.001},
    "trainer": {"steps": 16, "prompts_per_step": 8, "learning_rate": 3.0e-3, "save_every": 0, "keep_best": True},
    "evaluation": {"temperature": 1.0},
    "run": {"name": "lora"},
}


@pytest.fixture(scope="module")
def tuned(workplace: Any, warm: Any) -> Any:
    """A run with an adapter on the run `warm`."""
    return workplace.train(LORA)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_it_learns_and_the_engine_samples_what_is_trained(tuned: Any) -> None:
    before, after = (line.metrics["accuracy"] for line in tuned.metrics_lines("eval"))
    assert after > before + 0.15
    rewards = [line.metrics["reward/mean"] for line in tuned.metrics_lines("train")]
    assert mean(rewards[-4:]) > mean(rewards[:4]) + 0.15
    for line in tuned.metrics_lines("train"):
        assert 0.0 < line.metrics["logprob_mismatch/max"] < 1e-4
    kl = [line.metrics["kl"] for line in tuned.metrics_lines("train")]
    assert kl[0] < 1e-9, "at first the adapter changes nothing"
    assert kl[-1] > 1e-3


def test_an_export_needs_neither_toolrl_nor_peft(tuned: Any, here: Any, workplace: Any) -> None:
    """A checkpoint is an adapter; what is exported samples greedily what the run does."""
    (best,) = tuned.checkpoints.glob("step-*")
    assert (best / "adapter_model.safetensors").exists()
    assert not (best / "model.safetensors").exists()
    done = here("export", "runs/lora", "exported", "--checkpoint", "best", "--json")
    assert done.returncode == 0, done.stderr
    names = {file.name for file in (workplace.folder / "exported").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not names & {"adapter_config.json", "trainer", "manifest.json"}
    greedy = ("--set", "evaluation.temperature=0", "--set", "evaluation.tasks=24", "--json", "--overwrite")
    sampled: dict[str, dict[str, Any]] = {}
    for name, more in (("of-run", ()), ("of-export", ("--set", "model.path=exported", "--set", "model.lora=null"))):
        done = here("eval", "runs/lora", "--set", f"run.name={name}", *more, *greedy)
        assert done.returncode == 0, done.stderr
        sampled[name] = {stored.episode.task.id: stored.episode.ids for stored in workplace.run(name).episodes()}
    assert sampled["of-run"].keys() == sampled["of-export"].keys()
    same = [float(ids == sampled["of-export"][name]) for name, ids in sampled["of-run"].items()]
    assert mean(same) > 0.9, "rounding alone may turn a choice"
