"""Rows of prime-rl's rollouts and of verifiers' results.

prime-rl's orchestrator writes `rollouts/step_<n>/train_rollouts.jsonl`. First its rows were `RolloutOutput`s of
verifiers (verifiers/types.py), whose `trajectory` has the token ids of each request, with `advantage` and others added.
Now they are traces of verifiers.v1 (verifiers/v1/trace.py), graphs of messages with the tokens that each of them adds
(verifiers/v1/graph.py), and the fields of `Rollout.to_dict` (prime_rl/orchestrator/types.py) or a stamp
`info.prime_rl`. `vf-eval` writes the same rows as `results.jsonl`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from toolrl_plugin_audit import texts
from toolrl_plugin_audit.formats.flat import NAMES, cut, first, integer, numbers
from toolrl_plugin_audit.row_checks import comparable, finite
from toolrl_plugin_audit.rows import Exchange, Row, Tokens, quote, unusable

MAX_OFF_POLICY_STEPS = 8
"""prime-rl's default of `max_off_policy_steps`."""
_STEP = re.compile(r"step_(\d+)")


def is_prime(record: Any) -> bool:
    """Whether a JSON record is a rollout of prime-rl's or verifiers'."""
    if not isinstance(record, dict):
        return False
    if isinstance(record.get("nodes"), list) and ("task" in record or "rewards" in record):
        return True
    legacy = bool({"example_id", "trajectory", "is_completed", "generation_ms"} & record.keys())
    legacy = legacy or ("reward" in record and "task" in record and isinstance(record.get("completion"), list))
    return legacy and "prompt" in record and "completion" in record


def prime_row(record: Mapping[str, Any], place: str, path: Path, offered: tuple[str, ...] | None) -> Row:
    """A record as a row."""
    stamp = (record.get("info") or {}) if isinstance(record.get("info"), Mapping) else {}
    stamp = stamp.get("prime_rl") if isinstance(stamp.get("prime_rl"), Mapping) else {}
    facts = {**(stamp or {}), **record}
    step = _STEP.search(str(path))
    row = Row(place, integer(facts.get("step")) if facts.get("step") is not None else (int(step[1]) if step else None))
    failed = bool(record.get("error") or record.get("errors") or record.get("stop_condition") == "error")
    evaluated = facts.get("kind") == "eval" or "eval" in path.name
    row.compared = not failed and not evaluated
    row.advantage = finite(facts.get("advantage")) if not isinstance(facts.get("advantage"), list | dict) else None
    row.age = integer(first(facts, "age"))
    version = integer(first(facts, "oldest")) if "nodes" not in record else integer(facts.get("policy_version"))
    if row.age is None and version is not None and row.step is not None:
        row.age = max(row.step - version, 0)  # Where steps count from 1 and versions from 0, one less.
    row.ended = cut(record)
    if isinstance(record.get("nodes"), list):
        _read_trace(row, record, facts)
    else:
        _read_output(row, record)
    row.tools = offered or row.tools
    _note_unusable(row, record, facts)
    return row


def _note_unusable(row: Row, record: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Note the fields that are there and hold nothing that can be checked. A rollout that failed has no reward, and one
    that isn't trained no advantage."""
    names = ("reward", "rewards") if "nodes" in record else ("reward",)
    if row.reward is None and row.compared:
        # A trace of an environment without rewards has none, as distillation needs none.
        found = row.unread if "nodes" in record and not record.get("rewards") else row.broken
        found["rewards"] = unusable(record, names, lambda _: False) or "there is no reward"
    if row.advantage is None and (problem := unusable(facts, ("advantage",), lambda it: isinstance(it, list | dict))):
        (row.unread if facts.get("advantage") is None else row.broken)["advantages"] = problem
    # `version` of a trace is that of its form.
    versions = (*NAMES["age"], *(("policy_version",) if "nodes" in record else NAMES["oldest"]))
    if row.age is None and (problem := unusable(facts, versions, lambda _: False)):
        row.unread["versions"] = problem
    held = "nodes" if "nodes" in record else "trajectory"
    if row.tokens is None:
        problem = unusable(record, (held,), bool) or f"{held} holds no tokens"
        row.unread = {"masks": problem, "continuation": problem} | row.unread


# A `RolloutOutput`.


def _read_output(row: Row, record: Mapping[str, Any]) -> None:
    row.reward = finite(record.get("reward"))
    identifier = record.get("group_id", record.get("example_id"))
    row.group = None if identifier is None else f"{record.get('env_name') or record.get('task')}/{identifier}"
    info = texts.as_json(record.get("info"))
    info = info if isinstance(info, Mapping) else {}
    row.tools = texts.tool_names(first(record, "tools")) or texts.tool_names(info.get("oai_tools"))
    completion = record.get("completion")
    row.told = isinstance(completion, list | str)
    spoken = completion if isinstance(completion, list) else []
    if row.told:
        row.calls, _ = texts.calls_in_messages(spoken) if spoken else texts.calls_in_text(str(completion))
    else:
        problem = unusable(record, ("completion",), lambda _: False) or "there is no completion"
        row.unread |= {"tools": problem, "truncation": problem}
    requests = [it for it in record.get("trajectory") or () if isinstance(it, Mapping)]
    if any(it.get("is_truncated") for it in requests):
        row.ended = row.ended or "a request is_truncated"
    row.ended = row.ended or texts.transcript_cut_off(spoken)
    steps = [it for it in requests if isinstance(it.get("tokens"), Mapping)]
    problems = [problem for it in steps for problem in _without_numbers(it["tokens"])]
    if problems:
        row.unread |= {"masks": problems[0], "continuation": problems[0]}
    elif steps:
        row.exchanges = list(map(_exchange, steps))
        several = len(steps) > 1
        row.tokens = [_tokens(it, f"request {number + 1}" if several else "") for number, it in enumerate(steps)]
        row.advantage = row.advantage if row.advantage is not None else _one_advantage(steps)


def _without_numbers(held: Mapping[str, Any]) -> Iterator[str]:
    """The lists of a request's tokens that are no lists of numbers."""
    for name in ("prompt_ids", "completion_ids", "prompt_mask", "completion_mask"):
        problem = unusable(held, (name,), lambda it: it == [] or numbers(it) is not None)
        if problem or name not in held:
            yield problem or f"there is no {name}"


def _one_advantage(steps: list[Mapping[str, Any]]) -> float | None:
    values = {finite(it.get("advantage")) for it in steps} - {None}
    return values.pop() if len(values) == 1 else None


def _exchange(step: Mapping[str, Any]) -> Exchange:
    held = step["tokens"]
    before = after = None
    if isinstance(step.get("prompt"), list) and isinstance(step.get("completion"), list):
        before = list(map(comparable, step["prompt"]))
        after = [*before, *map(comparable, step["completion"])]
    ids = (numbers(held.get("prompt_ids")) or [], numbers(held.get("completion_ids")) or [])
    return Exchange(*ids, before, after, step.get("trajectory_id"))


def _tokens(step: Mapping[str, Any], name: str) -> Tokens:
    held = step["tokens"]
    prompt, completion = numbers(held.get("prompt_ids")) or [], numbers(held.get("completion_ids")) or []
    masks = [held["prompt_mask"], held["completion_mask"]]
    advantages = numbers(step.get("advantages") or held.get("advantages"))
    if advantages is not None and len(advantages) == len(completion):
        advantages = [0.0] * len(prompt) + advantages
    sampled = [False] * len(prompt) + [True] * len(completion)
    return Tokens(prompt + completion, [*masks[0], *masks[1]], sampled, advantages=advantages, name=name)


# A trace of verifiers.v1.


def _read_trace(row: Row, record: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    nodes = [it for it in record["nodes"] if isinstance(it, Mapping)]
    row.reward = _trace_reward(record)
    task = record.get("task") if isinstance(record.get("task"), Mapping) else {}
    held = (task or {}).get("data") if isinstance((task or {}).get("data"), Mapping) else task
    group = facts.get("group_id") or (task or {}).get("key") or (task or {}).get("hash") or (held or {}).get("idx")
    row.group = None if group is None else f"{facts.get('env_name') or ''}/{group}"
    row.tools = texts.tool_names(record.get("tools"))
    row.ended = row.ended or _by_calls(record, nodes)
    row.calls = [name for it in nodes if it.get("sampled") for name, _ in texts.calls_of(it.get("message") or {})]
    if any(it.get("token_ids") for it in nodes):
        row.tokens = [
            _node_tokens(it, number) for number, it in enumerate(nodes) if it.get("token_ids") or it.get("mask")
        ]
        row.drifts = _restated(nodes)


def _trace_reward(record: Mapping[str, Any]) -> float | None:
    parts = record.get("rewards")
    if record.get("reward") is not None or not isinstance(parts, Mapping) or not parts:
        return finite(record.get("reward"))
    values = [
        (finite(it.get("score")) or 0.0) * (1.0 if it.get("weight") is None else (finite(it["weight"]) or 0.0))
        if isinstance(it, Mapping)
        else finite(it)
        for it in parts.values()
        if it is not None
    ]
    return sum(value for value in values if value is not None) if values else None


def _by_calls(record: Mapping[str, Any], nodes: list[Mapping[str, Any]]) -> str | None:
    calls = [it for it in record.get("calls") or () if isinstance(it, Mapping) and not it.get("error")]
    reasons = [it.get("finish_reason") for it in calls] or [
        it.get("finish_reason") for it in nodes if it.get("sampled")
    ]
    return "finish_reason length" if reasons and reasons[-1] == "length" else None


def _node_tokens(node: Mapping[str, Any], number: int) -> Tokens:
    ids, mask = numbers(node.get("token_ids")) or [], list(node.get("mask") or ())
    message = node.get("message") or {}
    name = f"node {number} ({message.get('role')}: {quote(texts.content(message)[:60])})"
    # An assistant's node begins with the prompt's scaffold, so only of other nodes it is sure that nothing was sampled.
    sampled = None if node.get("sampled") else [False] * len(ids)
    values = numbers(node.get("advantages"))
    if values is not None and len(values) == sum(map(bool, mask)) != len(ids):
        given = iter(values)
        values = [next(given) if bit else 0.0 for bit in mask]
    return Tokens(ids, mask, sampled, advantages=values, name=name)


def _restated(nodes: list[Mapping[str, Any]]) -> list[str]:
    """Messages of a prompt that say what a sampled one said, as other tokens: the graph branched needlessly."""
    found = []
    sampled = [it for it in nodes if it.get("sampled")]
    for number, node in enumerate(nodes):
        message = node.get("message") or {}
        if node.get("sampled") or message.get("role") != "assistant":
            continue
        for other in sampled:
            if other.get("parent") == node.get("parent") and _said(other["message"]) == _said(message):
                found.append(f"node {number} restates a sampled message as a prompt's: {quote(texts.content(message))}")
                break
    return found


def _said(message: Mapping[str, Any]) -> str:
    """A message without what a template or a parser changes: white space, reasoning, the form of arguments."""
    return re.sub(r"\s+|\\", "", texts.content(message) + "".join(text for _, text in texts.calls_of(message)))
