"""Writers of clean dumps, each as the system's own code has it, and the faults that are put into them.

Each makes two steps of four groups of four rollouts: the model calls `calculator`, reads the answer, and answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolrl.protocols import StepReport
from toolrl.runs.folder import RunFolder
from toolrl.types import (
    CallRecord,
    Episode,
    Message,
    RewardEntry,
    Segment,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
)

Records = list[dict[str, Any]]
Change = Callable[[Records], Any]
REWARDS = (1.0, 0.0, 0.0, 1.0)
ADVANTAGES = (1.0, -1.0, -1.0, 1.0)
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1 + 2"}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "calculator", "description": "", "parameters": {}}}
PROMPT, SAMPLED, ANSWER, FINAL = [1, 2, 3], [10, 11, 12], [20, 21], [30, 31]
"""Token ids: a prompt, a sampled call, its answer as the template renders it, a sampled answer."""


def rollouts() -> list[tuple[int, int, int]]:
    """Step, group and index of each rollout."""
    return [(step, group, index) for step in (1, 2) for group in range(4) for index in range(4)]


# toolrl


def _episode(step: int, group: int, index: int) -> Episode:
    call = ToolCall("calculator", {"expression": "1 + 2"}, "call_1", raw=CALL)
    first = Segment("model", "ca", (3, 6))
    turns = (
        Turn(0, (first,), (call,), (CallRecord(call, ToolResult("3")),), "stop"),
        Turn(1, (Segment("model", "fi", (8, 10)),), (), (), "stop"),
    )
    ids = (*PROMPT, *SAMPLED, *ANSWER, *FINAL)
    mask = (0, 0, 0, 1, 1, 1, 0, 0, 1, 1)
    logprobs = tuple(-0.5 * bit for bit in mask)
    versions = tuple(step - 1 if bit else -1 for bit in mask)
    messages = (
        Message("user", "1 + 2?"),
        Message("assistant", "", tool_calls=(call,)),
        Message("tool", "3", tool_call_id="call_1"),
    )
    trajectory = Trajectory(ids, mask, logprobs, versions, 3, turns, (*messages, Message("assistant", "3")))
    name = f"train-{step}/{group}/t{group}"
    reward = RewardEntry(None, "reward:exact", REWARDS[(index + group) % 4])
    task = Task(f"t{group}", messages[:1])
    return Episode(f"{name}#{index}", task, "default", name, index, (trajectory,), "final", rewards=(reward,))


def write_toolrl(folder: Path, change: Change) -> None:
    """A run, by the run folder's own writer; `change` edits the stored records."""
    config = {"environments": {"default": {"tools": ["calculator"]}}, "rollout": {"max_staleness": 0}}
    run = RunFolder.create(folder, config, total_steps=2)
    run.add_tokens(
        {1: "1", 2: "+", 3: "2", 10: "c", 11: "a", 12: "<|im_end|>", 20: "3", 21: "\n", 30: "f", 31: "i", 13: "ca"}
    )
    for step in (1, 2):
        for key in rollouts():
            if key[0] == step:
                run.episode_store.add(_episode(*key))
        stored = run.episode_store.close_step(step, "train")
        run.metrics.append(StepReport(step, "train", {}), stored)
    run.close()
    import gzip

    paths = sorted((folder / "episodes").glob("*.gz"))
    lines = [[json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()] for path in paths]
    change([record for records in lines for record in records])
    for path, records in zip(paths, lines, strict=True):
        path.write_bytes(gzip.compress("".join(json.dumps(it) + "\n" for it in records).encode()))


# verl


def write_verl(folder: Path, change: Change) -> None:
    """`RayPPOTrainer._dump_generations`, verl/trainer/ppo/ray_trainer.py. Special tokens aren't decoded."""
    listed = json.dumps(TOOL)
    records = []
    for step, group, index in rollouts():
        prompt = f"system\n# Tools\n<tools>\n{listed}\n</tools>\nuser\nWhat is {group} + 2?\nassistant\n"
        output = f"{CALL}\nuser\n<tool_response>\n3\n</tool_response>\nassistant\nIt is 3."
        record = {"input": prompt, "output": output, "gts": "3", "score": REWARDS[(index + group) % 4], "step": step}
        records.append(record | {"acc": record["score"]})
    change(records)
    folder.mkdir(parents=True, exist_ok=True)
    for step in (1, 2):
        lines = [json.dumps(it, ensure_ascii=False) for it in records if it["step"] == step]
        (folder / f"{step}.jsonl").write_text("\n".join(lines) + "\n")


# TRL


def write_trl(folder: Path, change: Change) -> None:
    """`GRPOTrainer.log`, trl/trainer/grpo_trainer.py: a data frame a step. test_real_trl.py has the trainer itself."""
    import pandas

    records = []
    for step, group, index in rollouts():
        call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "1 + 2"}}}
        completion = [
            {"role": "assistant", "tool_calls": [call], "content": ""},
            {"role": "tool", "name": "calculator", "content": "3"},
            {"role": "assistant", "content": "It is 3."},
        ]
        prompt = [
            {"role": "system", "content": "Use the calculator tool."},
            {"role": "user", "content": f"{group} + 2?"},
        ]
        at = (index + group) % 4
        record = {"step": step, "prompt": prompt, "completion": completion}
        records.append(record | {"correct_reward": REWARDS[at], "advantage": ADVANTAGES[at]})
    change(records)
    (folder / "completions").mkdir(parents=True, exist_ok=True)
    for step in (1, 2):
        frame = pandas.DataFrame([it for it in records if it["step"] == step])
        frame.to_parquet(folder / "completions" / f"completions_{step:05d}.parquet")


# prime-rl

USER = {"role": "user", "content": "1 + 2?"}
ANSWERED = {"role": "tool", "content": "3", "tool_call_id": "call_1"}
SAID = {"role": "assistant", "content": "It is 3."}
OUTPUT = """{
  "example_id": 0, "task": "calc", "prompt": [], "completion": [], "answer": "3", "reward": 0.0, "advantage": 0.0,
  "is_completed": true, "is_truncated": false, "stop_condition": "no_tools_called", "metrics": {"num_turns": 2.0},
  "error": null, "trajectory": [], "tool_defs": [{"name": "calculator", "description": "", "parameters": {}}],
  "policy_version": 0
}"""
REQUEST = """{
  "prompt": [], "completion": [], "response": {}, "reward": null, "advantage": null, "is_truncated": false,
  "trajectory_id": "r0", "extras": {}, "tokens": {
    "prompt_ids": [], "prompt_mask": [], "completion_ids": [], "completion_mask": [], "completion_logprobs": [],
    "overlong_prompt": false, "is_truncated": false
  }
}"""
TRACE = """{
  "version": 1, "id": "", "task": {"type": "Calc", "data": {"idx": 0}}, "nodes": [],
  "tools": [{"name": "calculator", "description": "", "parameters": {}}],
  "calls": [{"node": 1, "finish_reason": "tool_calls"}, {"node": 3, "finish_reason": "stop"}],
  "rewards": {"exact": {"score": 0.0, "weight": 1.0}}, "metrics": {}, "info": {}, "is_completed": true, "ok": true,
  "stop_condition": "agent_completed", "errors": [], "kind": "train", "env_name": "calc", "group_id": "",
  "policy_version": 0, "off_policy_steps": 0, "advantage": 0.0
}"""


def write_prime(folder: Path, change: Change) -> None:
    """`rollouts/step_<n>/train_rollouts.jsonl` of `RolloutOutput`s (verifiers/types.py, `TrajectoryStep` and
    `TrajectoryStepTokens`), with the advantage that prime_rl/orchestrator adds."""
    function = {"name": "calculator", "arguments": '{"expression": "1 + 2"}'}
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }
    records = []
    for step, group, index in rollouts():
        at = (index + group) % 4
        record = json.loads(OUTPUT) | {"example_id": group, "reward": REWARDS[at], "advantage": ADVANTAGES[at]}
        trajectory = [
            _request([USER], [called], PROMPT, SAMPLED, f"r{index}"),
            _request([USER, called, ANSWERED], [SAID], PROMPT + SAMPLED + ANSWER, FINAL, f"r{index}"),
        ]
        record |= {"prompt": [USER], "completion": [called, ANSWERED, SAID], "trajectory": trajectory}
        records.append(record | {"policy_version": step - 1, "_step": step})
    _write_steps(folder, records, change)


def _request(prompt: Any, completion: Any, prompt_ids: list[int], ids: list[int], thread: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(REQUEST) | {"prompt": prompt, "completion": completion, "trajectory_id": thread}
    record["tokens"] |= {"prompt_ids": prompt_ids, "prompt_mask": [0] * len(prompt_ids), "completion_ids": ids}
    record["tokens"] |= {"completion_mask": [1] * len(ids), "completion_logprobs": [-0.5] * len(ids)}
    return record


def write_prime_trace(folder: Path, change: Change) -> None:
    """The same file by `Rollout.to_dict` (prime_rl/orchestrator/types.py): traces of verifiers.v1 (trace.py)."""
    call = {"id": "call_1", "name": "calculator", "arguments": '{"expression": "1 + 2"}'}
    messages = (USER, {"role": "assistant", "content": None, "tool_calls": [call]}, ANSWERED, SAID)
    # An assistant's node begins with the generation prompt.
    spans = (PROMPT[:2], [PROMPT[2], *SAMPLED], ANSWER, FINAL)
    masks = ([False] * 2, [False, True, True, True], [False] * 2, [True] * 2)
    records = []
    for step, group, index in rollouts():
        at = (index + group) % 4
        record = json.loads(TRACE) | {"id": f"{step}{group}{index}", "group_id": f"g{step}-{group}", "_step": step}
        record |= {"policy_version": step - 1, "advantage": ADVANTAGES[at]}
        record["rewards"]["exact"]["score"] = REWARDS[at]
        for number, (message, ids, mask) in enumerate(zip(messages, spans, masks, strict=True)):
            node = {"parent": number - 1 if number else None, "message": dict(message), "token_ids": ids, "mask": mask}
            node |= {"sampled": message["role"] == "assistant", "logprobs": [-0.5] * sum(mask)}
            record["nodes"].append(node | {"advantages": [ADVANTAGES[at]] * sum(mask) or None})
        records.append(record)
    _write_steps(folder, records, change)


def _write_steps(folder: Path, records: Records, change: Change) -> None:
    change(records)
    for step in (1, 2):
        path = folder / "rollouts" / f"step_{step}" / "train_rollouts.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = ({key: value for key, value in it.items() if key != "_step"} for it in records if it["_step"] == step)
        path.write_text("".join(json.dumps(it) + "\n" for it in lines))


# Faults: by check and system, what is changed in the fifth rollout, or in all where the check is of all.


def _set(*path: Any, to: Any) -> Change:
    def change(records: Records) -> None:
        at: Any = records[4]
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = to

    return change


def _all(**fields: Any) -> Change:
    def change(records: Records) -> None:
        for record in records:
            record.update({key: value(record) if callable(value) else value for key, value in fields.items()})

    return change


def _each(*changes: Change) -> Change:
    return lambda records: [change(records) for change in changes]


def _without_calls_toolrl(records: Records) -> None:
    for record in records:
        for turn in record["turns"]:
            turn.update(items=[], calls=[])


def _restated(records: Records) -> None:
    """A trace whose second prompt has the sampled call as other tokens: verifiers.v1 branches there."""
    nodes = records[4]["nodes"]
    call = nodes[1]["message"]["tool_calls"][0] | {"arguments": '{"expression":"1 + 2"}'}
    again = nodes[1] | {"sampled": False, "token_ids": [3, 99, 12], "mask": [False] * 3, "advantages": None}
    nodes.insert(2, again | {"message": nodes[1]["message"] | {"tool_calls": [call]}})
    nodes[3]["parent"], nodes[4]["parent"] = 2, 3
    records[4]["calls"][1]["node"] = 4


def _swapped(records: Records) -> None:
    """Advantages of a group with the wrong sign."""
    for record in records[4:8]:
        record["advantage"] = -record["advantage"]


def _drifting(ids: str) -> Records:
    return [{"prompt_ids": PROMPT, ids: SAMPLED}, {"prompt_ids": [*PROMPT, 10, 13, 20], ids: FINAL}]


VERL_TOKENS = {"response_ids": [10, 11, 20, 21, 30], "response_mask": [1, 1, 0, 0, 1]}
CUT = "\n<tool_call>\n{"
FAULTS: dict[str, dict[str, Change]] = {
    "continuation": {
        "toolrl": _set("ids", 3, to=30),
        "verl": _all(turns=_drifting("response_ids")),
        "trl": _all(turns=_drifting("completion_ids")),
        "prime": _set("trajectory", 1, "tokens", "prompt_ids", to=[*PROMPT, 10, 13, 12, *ANSWER]),
        "prime_trace": _restated,
    },
    "masks": {
        "toolrl": _set("loss_mask", 6, to=1),
        "verl": _all(**VERL_TOKENS | {"response_mask": [1] * 5}),
        "trl": _all(completion_ids=[10, 11, 20, 21, 30], tool_mask=[1] * 5),
        "prime": _set("trajectory", 1, "tokens", "prompt_mask", to=[0] * 6 + [1, 1]),
        "prime_trace": _set("nodes", 2, "mask", to=[True, True]),
    },
    "advantages": {
        "toolrl": _set("rewards", 0, "turn", to=7),
        "verl": _all(**VERL_TOKENS, advantages=[0.0, 0.5, 0.5, 0.0, 0.5]),
        "trl": _swapped,
        "prime": _swapped,
        "prime_trace": _set("nodes", 2, "advantages", to=[1.0, 1.0]),
    },
    "versions": {
        "toolrl": lambda records: [_stale_toolrl(it) for it in records[16:20]],
        "verl": _all(min_global_steps=-9),
        "trl": _all(policy_version=-20),
        "prime": _set("policy_version", to=-12),
        "prime_trace": _set("off_policy_steps", to=12),
    },
    "tools": {
        "toolrl": _without_calls_toolrl,
        "verl": _all(output="It is 3."),
        "trl": _all(completion=[{"role": "assistant", "content": "It is 3."}]),
        "prime": _all(completion=[{"role": "assistant", "content": "It is 3."}]),
        "prime_trace": lambda records: [it["nodes"][1]["message"].update(tool_calls=None) for it in records],
    },
    "rewards": {
        "toolrl": lambda records: [_reward_toolrl(it, 1.0) for it in records],
        "verl": _all(score=0.0),
        "trl": _all(correct_reward=1.0, advantage=0.0),
        "prime": _all(reward=0.0, advantage=0.0),
        "prime_trace": _all(rewards={"exact": {"score": 0.0, "weight": 1.0}}, advantage=0.0),
    },
    "truncation": {
        "toolrl": lambda records: [it.update(stop_reason="max_tokens") for it in records[4:8]],
        "verl": lambda records: [it.update(output=it["output"] + CUT) for it in records[4:8]],
        "trl": lambda records: [it["completion"][2].update(content="<think>I") for it in records[4:8]],
        "prime": lambda records: [it.update(is_truncated=True) for it in records[4:8]],
        "prime_trace": lambda records: [it.update(stop_condition="max_turns") for it in records[4:8]],
    },
}


def _reward_toolrl(record: dict[str, Any], value: float) -> None:
    record["reward"] = record["rewards"][0]["value"] = value


def _stale_toolrl(record: dict[str, Any]) -> None:
    record["weight_versions"] = [0 if version >= 0 else -1 for version in record["weight_versions"]]
