"""LoRA through the command line: it learns, engine and trainer agree, and a run goes on, is evaluated, built upon."""

from __future__ import annotations

import json
import signal
import time
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
PARTS = {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "trainer", "manifest.json"}


@pytest.fixture(scope="module")
def tuned(workplace: Any, warm: Any) -> Any:
    """A run with an adapter on the run `warm`."""
    done = workplace.toolrl("train", workplace.config(LORA, name="lora"), "--json")
    assert done.returncode == 0, done.stderr
    return workplace.run("lora")


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


def test_its_checkpoint_is_an_adapter(tuned: Any, workplace: Any) -> None:
    from transformers import AutoModelForCausalLM

    path = tuned.checkpoints / "step-000016"
    names = {file.name for file in path.iterdir()}
    assert names >= PARTS
    assert "model.safetensors" not in names
    model = AutoModelForCausalLM.from_pretrained(path)
    assert any("lora_A" in name for name, _ in model.named_parameters())
    whole = workplace.folder / "runs" / "warm" / "checkpoints" / "step-000040" / "model.safetensors"
    assert (path / "adapter_model.safetensors").stat().st_size < whole.stat().st_size / 4


def test_the_best_checkpoint_is_on_record(tuned: Any) -> None:
    record = json.loads((tuned.checkpoints / "best.json").read_text())
    value = tuned.metrics_lines("eval")[-1].metrics["accuracy"]
    assert record == {"step": 16, "metric": "accuracy", "value": value}
    assert (tuned.checkpoints / "best").resolve() == tuned.checkpoints / "step-000016"


@pytest.mark.parametrize(
    "arguments",
    [("runs/lora", "--checkpoint", "16"), ("runs/lora:best",)],
)
def test_it_is_evaluated(tuned: Any, here: Any, arguments: tuple[str, ...]) -> None:
    greedy = ("--set", "evaluation.temperature=0", "--set", "evaluation.tasks=24", "--json", "--overwrite")
    done = here("eval", *arguments, *greedy)
    assert done.returncode == 0, done.stderr
    start = here("eval", "runs/warm", "--set", "run.name=warm-eval-lora", *greedy)
    assert done.json()["accuracy"] > start.json()["accuracy"]


def test_a_checkpoint_that_is_not_there_is_an_error(tuned: Any, here: Any, warm: Any) -> None:
    done = here("eval", "runs/lora", "--checkpoint", "7")
    assert done.returncode == 1
    assert "there is no checkpoint '7'. There are: step-000016" in done.stderr
    done = here("eval", "runs/warm", "--checkpoint", "best")
    assert "there is no best checkpoint; trainer.keep_best keeps one" in done.stderr
    done = here("eval", warm.config, "--checkpoint", "best")
    assert done.returncode == 2
    assert "--checkpoint is for a run's folder" in done.stderr


def test_an_export_needs_neither_toolrl_nor_peft(tuned: Any, here: Any, workplace: Any) -> None:
    """It samples greedily what the run does."""
    done = here("export", "runs/lora", "exported", "--checkpoint", "best", "--json")
    assert done.returncode == 0, done.stderr
    folder = workplace.folder / "exported"
    names = {file.name for file in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not names & {"adapter_config.json", "trainer", "manifest.json"}
    greedy = ("--set", "evaluation.temperature=0", "--set", "evaluation.tasks=24", "--json", "--overwrite")
    sampled: dict[str, dict[str, Any]] = {}
    for name, more in (("of-run", ()), ("of-export", ("--set", "model.path=exported", "--set", "model.lora=null"))):
        done = here("eval", "runs/lora", "--set", f"run.name={name}", *more, *greedy)
        assert done.returncode == 0, done.stderr
        sampled[name] = {stored.episode.id: stored.episode.ids for stored in workplace.run(name).episodes()}
    assert sampled["of-run"].keys() == sampled["of-export"].keys()
    same = [float(ids == sampled["of-export"][name]) for name, ids in sampled["of-run"].items()]
    assert mean(same) > 0.9, "rounding alone may turn a choice"
    done = here("export", "runs/lora", "exported")
    assert "there is something here already" in done.stderr
    done = here("export", "runs/warm", "exported-warm")
    assert done.returncode == 0, done.stderr
    assert {"config.json", "model.safetensors"} <= {
        file.name for file in (workplace.folder / "exported-warm").iterdir()
    }


def test_a_run_builds_on_the_adapter_or_on_the_merged_model(tuned: Any, here: Any, workplace: Any) -> None:
    for name, lora in (("on-adapter", ADAPTER), ("on-merged", None)):
        changes = {
            **LORA,
            "model": {"path": "runs/lora:best", "lora": lora},
            "trainer": {"steps": 1, "keep_best": False},
            "evaluation": {"tasks": 24, "temperature": 0.0},
            "run": {"name": name},
        }
        done = here("train", workplace.config(changes, name=name))
        assert done.returncode == 0, done.stderr
        run = workplace.run(name)
        assert (run.checkpoints / "step-000001" / "adapter_config.json").exists() == (lora is not None)
        assert run.metrics_lines("train")[0].metrics["logprob_mismatch/max"] < 1e-4
        assert run.metrics_lines("train")[0].metrics["kl"] < 1e-9, "the reference is the model of the start"
    first = [workplace.run(name).metrics_lines("eval")[0].metrics["accuracy"] for name in ("on-adapter", "on-merged")]
    assert first[0] == pytest.approx(first[1], abs=0.1)


DETERMINISTIC: dict[str, Any] = {
    **LORA,
    "model": {"path": "runs/warm", "lora": ADAPTER, "gradient_checkpointing": True},
    "deterministic": True,
    "algorithm": {"preset": "ppo", "group_size": 2, "kl_coef": 0.1},
    "rollout": {"concurrency": 8},
    "trainer": {"steps": 4, "prompts_per_step": 4, "updates_per_step": 2, "learning_rate": 1.0e-3, "save_every": 1},
    "evaluation": {"every": 2, "tasks": 4},
}


@pytest.mark.slow
def test_a_killed_run_goes_on_bit_for_bit(own_place: Any, here: Any) -> None:
    """Adapter, critic, optimizers; activations are computed again in the backward pass."""
    from safetensors.torch import load_file

    config = own_place.config(DETERMINISTIC)
    process = own_place.start("train", config, "--set", "run.name=killed", stderr=own_place.folder / "stderr.txt")
    try:
        end = time.monotonic() + 300
        while not (own_place.folder / "runs" / "killed" / "checkpoints" / "step-000001").exists():
            assert process.poll() is None, (own_place.folder / "stderr.txt").read_text()
            assert time.monotonic() < end, "nothing happened"
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    for name, more in (("killed", ["--resume"]), ("whole", [])):
        done = here("train", config, "--set", f"run.name={name}", *more, place=own_place)
        assert done.returncode == 0, done.stderr
    clocked = ("time/", "speed/", "tool/")
    runs = [own_place.run(name) for name in ("killed", "whole")]
    metrics = [
        [
            (line.step, line.kind, {name: v for name, v in line.metrics.items() if not name.startswith(clocked)})
            for line in run.metrics_lines()
        ]
        for run in runs
    ]
    assert metrics[0] == metrics[1]
    weights = [load_file(run.checkpoints / "step-000004" / "adapter_model.safetensors") for run in runs]
    assert weights[0].keys() == weights[1].keys()
    assert all(value.equal(weights[1][name]) for name, value in weights[0].items())
