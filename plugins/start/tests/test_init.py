"""`toolrl init`: what it asks, finds out and writes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from toolrl.cli.main import main
from toolrl.plugins.registry import load_registry
from toolrl_common.hub import HubUnreachableError
from toolrl_plugin_start import hardware

SOLVED = {"problem": "Solve.", "solution": r"so \boxed{\frac{1}{2}}"}
VERL = {"prompt": [{"role": "user", "content": "2 + 2?"}], "reward_model": {"ground_truth": "4"}}
QWEN3_8B = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288,
    "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": False,
}  # fmt: skip
TOOL = '''
def roll(sides: int) -> str:
    """Roll a die with this many sides."""
    return str(sides)
'''


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model's config.json, data, and a tool."""
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(QWEN3_8B))
    rows({"question": "What is 12 * 34?", "answer": 408})
    Path("tools.py").write_text(TOOL)
    return tmp_path


def rows(*given: Any, name: str = "train.jsonl") -> None:
    Path(name).write_text("\n".join(map(json.dumps, given)))


def written(*arguments: str, output: str = "grpo.yaml") -> dict[str, Any]:
    assert main(["init", "--model", "model", "--data", "train.jsonl", "--output", output, "--yes", *arguments]) == 0
    config: dict[str, Any] = yaml.safe_load(Path(output).read_text())
    return config


def comments(output: str) -> str:
    return " ".join(Path(output).read_text().replace("#", "").split())


def test_names_with_shell_syntax_are_names(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.jsonl").rename("$(x) ${HOME} #.jsonl")
    written("--data", "$(x) ${HOME} #.jsonl", output="my $(x).yaml")  # the last --data counts
    assert "toolrl train 'my $(x).yaml'" in capsys.readouterr().out


def test_a_config_with_a_tool_and_a_reward_of_ones_own() -> None:
    Path("rewards.py").write_text("def right(episode):\n    return True\n")
    own = ("--tool", "tools.py:roll", "--tool", "calculator", "--reward", "rewards.py:right")
    config = written(*own, "--steps", "7")
    environment = config["environments"]["default"]
    assert environment["tools"] == [{"use": "function", "options": {"target": "tools.py:roll"}}, "calculator"]
    reward = {"use": "function", "options": {"target": "rewards.py:right"}, "name": "right"}
    assert environment["rewards"] == [reward]
    assert config["trainer"]["steps"] == 7
    first = Path("grpo.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=toolrl.schema.json"
    assert json.loads(Path("toolrl.schema.json").read_text())["properties"]["model"]


@pytest.mark.parametrize(
    ("row", "fields", "reward"),
    [
        ({"prompt": "What is 2 + 2?", "answer": "4"}, {}, "gsm8k"),
        (VERL, {"answer": "reward_model.ground_truth"}, "gsm8k"),
        (SOLVED, {"prompt": "problem", "answer": "solution"}, "math"),
        ({"messages": [{"role": "user", "content": "Capital?"}], "target": "Oslo"}, {"answer": "target"}, "exact"),
    ],
)  # fmt: skip
def test_columns_and_a_reward_are_found(row: Any, fields: dict[str, str], reward: str) -> None:
    rows(row)
    config = written()
    assert config["data"]["train"]["options"].get("fields", {}) == fields
    (chosen,) = config["environments"]["default"]["rewards"]
    assert (chosen if isinstance(chosen, str) else chosen["use"]) == reward


SOLUTION = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]


@pytest.mark.parametrize(
    ("row", "fields", "unseen"),
    [
        ({"instruction": "Sort.", "input": "", "output": "1 2"},
         {"prompt": "instruction", "answer": "output", "context": "input"}, ""),
        ({"instruction": "When?", "context": "In 1999 it rained.", "response": "1999", "category": "qa"},
         {"prompt": "instruction", "answer": "response", "context": "context"}, "category"),
        ({"system": "Be brief.", "query": "When?", "response": "1999"},
         {"prompt": "query", "answer": "response", "system": "system"}, ""),
        ({"title": "Rain", "question": "When?", "context": "In 1999.", "answers": {"text": ["1999"]}},
         {"prompt": "question", "answer": "answers.text", "context": "context"}, "title"),
        ({"problem": "2 + 2?", "answer": "4", "solution": "So 4.", "messages": SOLUTION},
         {"prompt": "problem"}, "solution, messages"),
        ({"prompt": "2 + 2?", "answer": "4", "messages": SOLUTION}, {"prompt": "prompt"}, "messages"),
        ({"prompt": "2 + 2?", "answer": "4", "messages": SOLUTION[:1]}, {"messages": "messages"}, "prompt"),
        ({"question": "Which?", "choices": ["a", "b"], "answer": "b"}, {"prompt": "question"}, "choices"),
        ({"instruction": "Add.", "input": "", "output": "def add(a, b):\n    return a + b",
          "prompt": "### Add.\ndef add(a, b):\n    return a + b"},
         {"prompt": "instruction", "answer": "output", "context": "input"}, "prompt"),
        ({"prompt": "In 1999 it rained. When?", "context": "In 1999 it rained.", "answer": "1999"}, {}, "context"),
    ],
    ids=["Alpaca", "Dolly", "ms-swift", "SQuAD", "open-r1", "solved", "both", "choices", "rendered", "in the question"],
)  # fmt: skip
def test_a_column_of_the_question_is_carried_or_said(
    row: Any, fields: dict[str, str], unseen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows(row)
    config = written()
    assert config["data"]["train"]["options"].get("fields", {}) == fields
    printed = capsys.readouterr().out
    assert ("not shown to the model" in printed) == bool(unseen)
    assert not unseen or f"not shown to the model: {unseen}\n" in printed
    assert not unseen or unseen in comments("grpo.yaml")


@pytest.mark.parametrize(
    "row",
    [
        {"messages": SOLUTION, "answer": "4"},
        {"messages": json.dumps(SOLUTION), "answer": "4"},
        {"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}], "answer": "4"},
    ],
)
def test_conversations_that_hold_the_answer_ask_nothing(row: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows(row)
    assert main(["init", "--model", "model", "--data", "train.jsonl", "--yes"]) != 0
    assert f"{next(iter(row))!r} holds whole conversations" in capsys.readouterr().err


def test_sizes_fit_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "machine", lambda: hardware.Machine(200.0))
    assert "lora" not in written()["model"]
    monkeypatch.setattr(hardware, "machine", lambda: hardware.Machine(64.0))
    assert written(output="small.yaml")["model"]["lora"] == {}
    assert "of 64 GiB. So an adapter is trained" in comments("small.yaml")


def test_a_plan_for_a_gpu_is_taken_over() -> None:
    pytest.importorskip("toolrl_plugin_torch")
    config = written("--gpu", "h200")
    assert config["trainer"]["offload"] == ["optimizer"]
    assert "trainer.offload is set: then" in comments("grpo.yaml")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--model is missing"),
        (["--model", "model", "--data", "nothing.jsonl"], "no file matches 'nothing.jsonl'"),
        (["--model", "model", "--data", "odd.jsonl"], "no column looks like a question; the first row has: a"),
        (["--model", "model", "--data", "odd.jsonl", "--question", "a"], "no column that looks like an answer"),
        (["--model", "model", "--data", "train.jsonl", "--tool", "calculatr"], "Did you mean 'calculator'?"),
        (["--model", "model", "--data", "train.jsonl", "--tool", "tools.py:rol"], "'tools.py' has no 'rol'"),
        (["--output", "tools.py"], "tools.py: the file is there already"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows({"a": "?"}, name="odd.jsonl")
    assert main(["init", *arguments]) != 0
    assert said in capsys.readouterr().err
    assert Path("tools.py").read_text() == TOOL


def test_it_asks_on_a_terminal(place: Path) -> None:
    """Asks again where an answer can't be used, and last for another file where one is there already."""
    Path("grpo.yaml").write_text("mine")
    answers = ("modl/x/y", "model", "trian.jsonl", "train.jsonl", "", "tools.py:roll", "exakt", "exact", "n", "")
    shown = _typed(*answers)
    for said in ("there is no folder 'modl/x/y'", "no file matches 'trian.jsonl'", "Did you mean 'exact'?"):
        assert said in shown
    assert "Tools, with commas between: calc" in shown
    assert re.search(r"Reward: .*exact, .*gsm8k, ", shown)
    assert Path("grpo.yaml").read_text() == "mine"
    environment = yaml.safe_load(Path("grpo-2.yaml").read_text())["environments"]["default"]
    assert (environment["tools"][0]["options"]["target"], environment["rewards"]) == ("tools.py:roll", ["exact"])
    _typed("model", "train.jsonl", "", "", "", "y")
    assert "environments" in yaml.safe_load(Path("grpo.yaml").read_text())


@pytest.mark.parametrize("name", ["nosuch/model/x", "./nosuch", "/nosuch/model", "nosuch", "model/nosuch"])
def test_a_model_that_isnt_there_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--model", name, "--data", "train.jsonl", "--yes"]) != 0
    assert "there is no folder" in capsys.readouterr().err
    assert not Path("grpo.yaml").exists()


def test_a_name_of_the_hub_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def unreachable(name: str, kind: str) -> None:
        asked.append(name)
        raise HubUnreachableError("the Hub can't be reached")

    monkeypatch.setattr(hardware, "check_on_hub", unreachable)
    assert hardware.model("owner/name").parameters is None
    assert asked == ["owner/name"]


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        ({"Problem": "2 + 2?", "Solution": "4"}, {"prompt": "Problem", "answer": "Solution"}),
        ({"QUESTION": "2 + 2?", "Final Answer": "4"}, {"prompt": "QUESTION", "answer": "Final Answer"}),
        ({"Prompt": "2 + 2?", "Reward_Model": {"Ground-Truth": "4"}},
         {"prompt": "Prompt", "answer": "Reward_Model.Ground-Truth"}),
        ({"Problem": "2 + 2?", "problem": "3 + 3?", "answer": "6"}, {"prompt": "problem"}),
    ],
)  # fmt: skip
def test_columns_are_found_in_other_spellings(row: dict[str, Any], fields: dict[str, str]) -> None:
    rows(row)
    assert written()["data"]["train"]["options"]["fields"] == fields


def test_a_csv_file_is_read_by_huggingface(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.csv").write_text('Question,Answer\n"What is 2 + 2, then?",4\n"3 + 3?",6\n')
    if "huggingface" not in load_registry().names("datasets"):
        assert main(["init", "--model", "model", "--data", "train.csv", "--yes"]) != 0
        assert "toolrl-plugin-huggingface" in capsys.readouterr().err
        return
    train = written("--data", "train.csv")["data"]["train"]
    assert train["use"] == "huggingface"
    assert train["options"] == {"path": "train.csv", "fields": {"prompt": "Question", "answer": "Answer"}}
    assert "2 rows" in capsys.readouterr().out


def test_questions_beyond_the_models_context_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("model/config.json").write_text(json.dumps({**QWEN3_8B, "max_position_embeddings": 512}))
    rows({"question": "What? " * 300, "answer": 4})
    assert main(["init", "--model", "model", "--data", "train.jsonl", "--yes"]) != 0
    assert re.search(r"takes about 800 tokens .* context is 512", capsys.readouterr().err)


def test_the_next_command_isnt_train_where_a_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("toolrl_plugin_torch")
    written()  # The model's folder has no weights.
    printed = capsys.readouterr().out
    assert "A run is refused here" in printed
    assert "next:" not in printed


def _typed(*answers: str) -> str:
    """What `toolrl init` shows on a terminal where these lines are typed."""
    ours, its = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", "toolrl", "init"], stdin=its, stdout=its, stderr=its)
    os.close(its)
    os.write(ours, "".join(f"{answer}\n" for answer in answers).encode())
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # its end is closed
        pass
    os.close(ours)
    process.wait(60)
    assert process.returncode == 0, shown.decode()
    return shown.decode()
