"""The main job through the command line: fine-tune, train, evaluate, sample, report; and what is said when it can't."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

# What each command leaves.


def test_fine_tuning_lowers_the_loss_and_leaves_a_model(warm: Any, steps_of: Any) -> None:
    losses = [line.metrics["loss"] for line in warm.folder.metrics_lines("sft")]
    assert list(steps_of(warm.folder, "sft")) == list(range(1, 41))
    assert losses[-1] < losses[0] / 5
    assert warm.folder.summary()["status"] == "finished"
    checkpoint = warm.folder.checkpoints / "step-000040"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in checkpoint.iterdir()}


def test_a_run_folder_holds_everything(trained: Any) -> None:
    directory = trained.folder.directory
    assert {path.name for path in directory.iterdir() if not path.name.startswith(".")} == {
        *("config.yaml", "plugins.json", "metrics.jsonl", "tokens.jsonl", "summary.json", "report.html", "run.log"),
        *("episodes", "checkpoints"),
    }
    config = yaml.safe_load((directory / "config.yaml").read_text())
    assert config["trainer"]["steps"] == 3
    assert config["algorithm"]["clip_high"] == 0.28, "a preset's value is written out"
    versions = json.loads((directory / "plugins.json").read_text())
    assert {"builtin", "calculator", "math", "qwen", "transformers"} <= set(versions["plugins"])
    summary = trained.folder.summary()
    assert (summary["status"], summary["steps"], summary["total_steps"]) == ("finished", 3, 3)
    assert summary["episodes"] == 3 * 16 + 2 * 12
    assert [path.name for path in sorted(trained.folder.checkpoints.iterdir())] == ["step-000002", "step-000003"]


def test_every_step_has_finite_metrics(trained: Any, steps_of: Any) -> None:
    assert list(steps_of(trained.folder, "train")) == [1, 2, 3]
    assert list(steps_of(trained.folder, "eval")) == [0, 3]
    for line in trained.folder.metrics_lines():
        assert all(math.isfinite(value) for value in line.metrics.values()), line
    needed = {"reward/mean", "accuracy", "turns/mean", "calls/mean", "calls/success", "truncated", "errors/rate"}
    of_training = {"entropy", "clip_fraction", "loss", "grad_norm", "learning_rate", "logprob_mismatch/max"}
    of_speed = {"speed/tokens_per_second", "speed/episodes_per_second", "time/rollout", "time/update", "time/weights"}
    for line in trained.folder.metrics_lines("train"):
        assert needed | of_training | of_speed <= line.metrics.keys()
    for line in trained.folder.metrics_lines("eval"):
        assert needed | {"avg@1", "pass@1", "time/eval"} <= line.metrics.keys()


def test_the_engine_and_the_trainer_agree_on_log_probabilities(trained: Any) -> None:
    for line in trained.folder.metrics_lines("train"):
        assert 0.0 < line.metrics["logprob_mismatch/max"] < 1e-4
        assert line.metrics["ratio/max"] == 1.0, "one update a step starts from the weights that sampled"


# The episodes.


def test_episodes_are_exact(trained: Any, tiny_model: Path) -> None:
    """What is trained on is what was sampled, and between two turns stands what the chat template puts there."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    stored = list(trained.folder.episodes())
    assert len(stored) == 3 * 16 + 2 * 12
    assert any(len(item.episode.turns) > 1 for item in stored)
    for item in stored:
        episode = item.episode
        spans = [segment.tokens for turn in episode.turns for segment in turn.segments]
        sampled = {position for start, end in spans for position in range(start, end)}
        for position, bit in enumerate(episode.loss_mask):
            assert bit == (position in sampled)
            version = item.step - 1 if item.kind == "train" else item.step
            assert episode.weight_versions[position] == (version if bit else -1)
            assert episode.logprobs[position] < 0.0 if bit else episode.logprobs[position] == 0.0
        assert episode.prompt_length == spans[0][0]
        prompt = [{"role": message.role, "content": message.content} for message in episode.task.messages]
        tools = [{"function": {"name": "calculator", "parameters": {"properties": {"expression": {}}}}}]
        text = tokenizer.apply_chat_template(prompt, tools=tools, tokenize=False, add_generation_prompt=True)
        assert tokenizer.decode(episode.ids[: episode.prompt_length]) == text
        for turn, (_, end), (start, _) in zip(episode.turns, spans, spans[1:], strict=False):
            responses = "".join(
                f"<|im_start|>tool\n<tool_response>{record.result.text}</tool_response><|im_end|>\n"
                for record in turn.calls
            )
            between = tokenizer.decode(episode.ids[end:start])
            ended = tokenizer.decode(episode.ids[end - 1 : end]) == "<|im_end|>"
            assert between == ("" if ended else "<|im_end|>") + f"\n{responses}<|im_start|>assistant\n"


# The other commands.


def test_a_run_is_evaluated_by_its_last_checkpoint(trained: Any, here: Any, workplace: Any) -> None:
    done = here("eval", "runs/grpo", "--json")
    assert done.returncode == 0, done.stderr
    last = trained.folder.metrics_lines("eval")[-1].metrics
    for name in ("accuracy", "calls/mean", "tokens/sampled"):
        assert done.json()[name] == last[name], "greedy, on the same tasks and the same weights"
    folder = workplace.run("grpo-eval")
    assert folder.summary()["status"] == "finished"
    assert len(list(folder.episodes(kind="eval"))) == 12
    assert not any(folder.directory.glob("checkpoints/*"))


def test_an_evaluation_of_a_step_equals_that_of_the_run(own_place: Any, here: Any) -> None:
    """Sampled, not greedy: the seeds are those of the step."""
    settings = {
        "model": {"path": "runs/warm"},
        "evaluation": {"temperature": 1.0, "episodes_per_task": 2},
        "trainer": {"steps": 2},
        "run": {"name": "sampling"},
    }
    config = own_place.config(settings)
    assert here("train", config, "--json", place=own_place).returncode == 0
    done = here("eval", "runs/sampling", "--json", place=own_place)
    assert done.returncode == 0, done.stderr
    (own,) = [line for line in own_place.run("sampling").metrics_lines("eval") if line.step == 2]
    (line,) = own_place.run("sampling-eval").metrics_lines("eval")
    assert line.step == 2
    names = [name for name in own.metrics if name.startswith(("accuracy", "reward/", "tokens/", "calls/mean", "avg@"))]
    assert "tokens/sampled" in names
    assert {name: line.metrics[name] for name in names} == {name: own.metrics[name] for name in names}


def test_commands_in_a_row_get_names_of_their_own(own_place: Any, here: Any, caplog: pytest.LogCaptureFixture) -> None:
    """As the pages say: eval, rollout, train, eval of the run twice, with an ablation, and resume."""
    settings = {"model": {"path": "runs/warm"}, "evaluation": {"tasks": 2}, "trainer": {"steps": 1}}
    config = own_place.config({**settings, "run": {"name": "grpo"}})
    lines = [
        f"eval {config}", f"rollout {config} --tasks 1 --episodes 2", f"train {config}",
        "eval runs/grpo", "eval runs/grpo", "eval --ablate runs/grpo", "eval runs/grpo --checkpoint 1",
        f"train {config} --set trainer.steps=2 --resume-if-exists",
    ]  # fmt: skip
    for line in lines:
        done = here(*line.split(), "--json", place=own_place)
        assert done.returncode == 0, (line, done.stderr)
    names = {path.name for path in (own_place.folder / "runs").iterdir()} - {"warm"}
    assert names == {
        "grpo", "grpo-eval", "grpo-eval-2", "grpo-eval-3", "grpo-rollout", "grpo-ablate", "grpo-eval-step1",
    }  # fmt: skip
    assert [own_place.run(name).kind for name in ("grpo", "grpo-eval", "grpo-ablate", "grpo-rollout")] == [
        "train", "eval", "ablate", "rollout",
    ]  # fmt: skip
    for line, problem in (
        (f"eval {config} --set run.name=grpo-eval", "a run here already"),
        (f"train {config} --set run.name=grpo-eval --resume", "of the kind 'eval'"),
        (f"train {config} --set run.name=gpro --resume", "no run to resume"),
    ):
        done = here(*line.split(), place=own_place)
        assert done.returncode == 1
        assert problem in done.stderr
    settings_changed = f"train {config} --resume --set trainer.steps=3 --set trainer.learning_rate=0.5"
    done = here(*settings_changed.split(), place=own_place)
    assert done.returncode == 0, done.stderr
    assert "trainer.learning_rate: 0.001 -> 0.5" in caplog.text


def test_rollout_samples_episodes_and_trains_nothing(trained: Any, here: Any, workplace: Any) -> None:
    done = here("rollout", trained.config, "--tasks", "3", "--episodes", "2", "--set", "run.name=sampled", "--json")
    assert done.returncode == 0, done.stderr
    episodes = [item.episode for item in workplace.run("sampled").episodes(kind="rollout")]
    tasks = {episode.task.id for episode in episodes}
    assert len(tasks) == 3
    assert {(episode.task.id, episode.index) for episode in episodes} == {
        (task, index) for task in tasks for index in (0, 1)
    }
    assert len(episodes) == 6
    assert done.json()["reward/mean"] == pytest.approx(sum(episode.reward for episode in episodes) / 6)
    assert not any((workplace.folder / "runs" / "sampled").glob("checkpoints/*"))


def test_it_is_reported_and_audited(trained: Any, here: Any, read_report: Any) -> None:
    titles = {chart["title"] for section in read_report(trained.folder)["sections"] for chart in section["charts"]}
    assert {"Reward", "Accuracy", "Calls per episode"} <= titles
    done = here("audit", "runs/grpo", "--json")
    assert (done.returncode, done.json()["findings"]) == (0, [])
    assert done.json()["checks"]["continuation"]["rows"] == done.json()["rows"]


def test_fine_tuning_on_the_good_episodes_of_a_run(trained: Any, here: Any, workplace: Any) -> None:
    sft = {"from_run": "runs/grpo", "min_reward": 1.0, "steps": 2, "batch_size": 8, "learning_rate": 1.0e-4}
    config = workplace.config(
        {"model": {"path": "runs/grpo"}, "sft": sft, "run": {"name": "from-run"}}, name="from-run"
    )
    done = here("sft", config, "--json")
    assert done.returncode == 0, done.stderr
    good = [item.episode for item in trained.folder.episodes(kind="train") if item.episode.reward >= 1.0]
    tokens = {episode.sampled_tokens for episode in good}
    for line in workplace.run("from-run").metrics_lines("sft"):
        assert 8 * min(tokens) <= line.metrics["tokens/trained"] <= 8 * max(tokens)
        assert 0.0 < line.metrics["loss"] < 1.0, "the model says again what it has said"


# What is refused.


@pytest.mark.parametrize(
    ("command", "changes", "says"),
    [
        ("train", {"data": {"train": None}}, "data.train: needed here, but the config names no data set"),
        ("sft", {}, "sft: missing, so there is nothing to fine-tune on"),
        ("sft", {"sft": {"from_run": "runs/nowhere"}}, "no run here"),
        ("train", {"model": {"path": "runs/nowhere"}}, "model.path: there is no folder 'runs/nowhere' here"),
        ("train", {"model": {"path": "runs"}}, "model.path: 'runs' is no whole model: it has no config.json"),
        (
            "train",
            {"environments": {"default": {"history": ["summarise"], "parser": "tir"}}},
            "the parser 'tir' puts results inside the turn",
        ),
        ("train", {"rollout": {"max_episode_tokens": 4096}}, "rollout.max_episode_tokens: 4096 tokens, but the model"),
        ("train", {"device": "abacus"}, "device: 'abacus' is no device"),
        (
            "train",
            {"environments": {"default": {"rewards": ["reasoning_gym"]}}},
            "data.train: 40 of the first 40 rows are bad",
        ),
    ],
)
def test_what_cannot_run_says_why(
    command: str, changes: dict[str, Any], says: str, trained: Any, here: Any, workplace: Any
) -> None:
    config = workplace.config({"run": {"name": "wrong"}, **changes}, name="wrong")
    done = here(command, config)
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (workplace.folder / "runs" / "wrong" / "metrics.jsonl").exists()


def test_bad_rows_stop_a_run_or_are_left_out_and_counted(trained: Any, here: Any, workplace: Any) -> None:
    rows = ['{"prompt": "1 + 1", "answer": "2"}', '{"prompt": "1 +', '{"prompt": "2 + 1", "answer": "3"}', "[[]]"]
    (workplace.folder / "rows.jsonl").write_text("\n".join(rows))
    data = {name: {"use": "jsonl", "options": {"path": "rows.jsonl"}} for name in ("train", "eval")}
    config = workplace.config({"data": data, "trainer": {"steps": 1}, "run": {"name": "rows"}}, name="rows")
    done = here("train", config)
    assert done.returncode == 1
    assert "rows.jsonl:2: not JSON" in done.stderr
    done = here("train", config, "--set", "data.bad_rows=skip", "--overwrite")
    assert done.returncode == 0, done.stderr
    folder = workplace.run("rows")
    assert {line.kind: line.metrics["data/bad_rows"] for line in folder.metrics_lines()} == {"train": 4, "eval": 4}
    assert len(list(folder.episodes(kind="eval", steps=[1]))) == 2


VANDAL = {
    "plugin": """
        from toolrl import Component, hookimpl

        @hookimpl
        def toolrl_observers():
            yield Component("vandal", "toolrl_plugin_vandal.plugin:Vandal", summary="Changes the data.")

        class Vandal:
            def __init__(self, options, context):
                pass

            def toolrl_step_end(self, run, report):
                from pathlib import Path
                path = Path("changing.jsonl")
                path.write_text(path.read_text().replace("99", "55"))
    """
}


def test_data_that_changes_stops_a_run_or_is_remarked_on(
    trained: Any, here: Any, workplace: Any, plugin_site: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def write(answer: str) -> None:
        rows = [{"prompt": f"{number} + 1", "answer": answer} for number in range(10, 18)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    path = workplace.folder / "changing.jsonl"
    write("11")
    data = {name: {"use": "jsonl", "options": {"path": "changing.jsonl"}} for name in ("train", "eval")}
    config = workplace.config({"data": data, "trainer": {"steps": 1}, "run": {"name": "changing"}}, name="changing")
    assert here("train", config).returncode == 0
    done = here("train", config, "--resume", "--set", "trainer.steps=2")
    assert (done.returncode, "the data have changed" in caplog.text) == (0, False)
    write("99")
    plugin_site.add("vandal", VANDAL)
    more = ["--resume", "--set", "trainer.steps=4", "--set", 'observers=["vandal"]']
    done = here("train", config, *more, site=plugin_site)
    for where in ("data.train", "data.eval"):
        assert f"{where}: the data have changed since step-000002 was written" in caplog.text
    assert done.returncode == 1
    assert "changing.jsonl: the file was changed during the run" in done.stderr
    assert workplace.run("changing").summary()["steps"] == 3


# A run that stops itself.

SANDBOX = {
    "plugin": """
        from toolrl import Component, hookimpl

        @hookimpl
        def toolrl_tools():
            yield Component("sandbox", "toolrl_plugin_sandbox.tool:Sandbox", summary="Dies in the second step.")
    """,
    "tool": """
        from pathlib import Path
        from toolrl.protocols import EpisodeContext
        from toolrl.tools import Tool
        from toolrl.types import ToolSpec

        class Sandbox(Tool):
            spec = ToolSpec("calculator", "Adds.", {"type": "object", "properties": {"expression": {"type": "string"}}})

            def create(self, instance_id, *, episode: EpisodeContext):
                if episode.episode_id.startswith("train-2/") and Path("sandbox-is-dead").exists():
                    raise ConnectionError("nobody listens on port 9")

            def execute(self, instance_id, parameters):
                return "7"
    """,
}


def test_a_dead_tool_stops_the_run_and_the_report_says_so(
    trained: Any, here: Any, workplace: Any, plugin_site: Any, steps_of: Any
) -> None:
    plugin_site.add("sandbox", SANDBOX)
    dead = workplace.folder / "sandbox-is-dead"
    dead.touch()
    arguments = ("train", trained.config, "--set", "run.name=dead", "--set", "environments.default.tools=[sandbox]")
    done = here(*arguments, site=plugin_site)
    assert done.returncode == 1
    assert "16 of 16 episodes failed, more than rollout.max_error_rate 0.2 allows" in done.stderr
    assert "ConnectionError: nobody listens on port 9" in done.stderr
    assert "Traceback" not in done.stderr

    folder = workplace.run("dead")
    assert (folder.summary()["status"], folder.summary()["steps"]) == ("failed", 1)
    failed = [item.episode.failure for item in folder.episodes() if item.episode.failure is not None]
    assert len(failed) == 16
    assert all(failure.fault == "tool" and "ConnectionError" in failure.traceback for failure in failed)
    assert "nobody listens on port 9" in folder.report_path.read_text()

    dead.unlink()
    done = here(*arguments, "--resume", "--json", site=plugin_site)
    assert done.returncode == 0, done.stderr
    assert done.json()["steps"] == 3
    assert list(steps_of(folder, "train")) == [1, 2, 3]
    assert folder.summary()["status"] == "finished"


# A plugin's part in the algorithm.


OBJECTIVES = {
    "gspo": ["algorithm.preset=gspo", "algorithm.credit=turn", "algorithm.overlong={tokens: 24, buffer: 8}"],
    "ppo": ["algorithm.preset=ppo", "algorithm.credit=turn", "algorithm.importance={cap: 1.5}"],
    "gdpo": ["algorithm.preset=grpo", "algorithm.advantage=gdpo", "algorithm.policy_loss=dppo"],
    "maxrl": ["algorithm.preset=grpo", "algorithm.advantage=maxrl"],
    "gigpo": ["algorithm.preset=grpo", "algorithm.advantage=gigpo"],
    "rloo": ["algorithm.preset=rloo"],
}
QUICK = ("gspo", "ppo", "gdpo")


@pytest.mark.parametrize("name", [it if it in QUICK else pytest.param(it, marks=pytest.mark.slow) for it in OBJECTIVES])
def test_objectives_train(trained: Any, here: Any, workplace: Any, name: str) -> None:
    settings = [
        f"run.name={name}", *OBJECTIVES[name], "trainer.steps=1", "trainer.updates_per_step=2",
    ]  # fmt: skip
    done = here("train", trained.config, *(part for value in settings for part in ("--set", value)))
    assert done.returncode == 0, done.stderr
    (step,) = (line.metrics for line in workplace.run(name).metrics_lines("train"))
    assert math.isfinite(step["loss"])
    assert step["grad_norm"] > 0
    assert 0 < step.get("importance/mean", 1) <= 1.5
    assert -1 <= step.get("overlong/penalty", 0) <= 0
