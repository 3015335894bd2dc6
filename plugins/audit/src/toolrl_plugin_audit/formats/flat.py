"""Rows of verl's and TRL's dumps: one flat record a rollout.

verl: `trainer.rollout_data_dir` and `validation_data_dir`, `<step>.jsonl` by `RayPPOTrainer._dump_generations`
(verl/trainer/ppo/ray_trainer.py): `input`, `output`, `score`, `step`, since v0.5 `gts`, and a key for each extra of the
reward function; the trainers of verl/trainer/ppo/v1 add `uid`. TRL: `completions/completions_<step>.parquet` as
`GRPOTrainer.log` writes it with `log_completions`: `step`, `prompt`, `completion`, a column for each reward function,
columns of `log_extra`, `advantage`. Neither holds tokens by itself; extras that do, under the names below, are checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from toolrl_plugin_audit import texts
from toolrl_plugin_audit.row_checks import finite
from toolrl_plugin_audit.rows import Exchange, Row, Tokens, unusable

NAMES = {
    "prompt": ("input", "prompt", "prompts"),
    "response": ("output", "completion", "response", "responses"),
    "reward": ("score", "reward", "rewards", "total_reward"),
    "step": ("step", "global_step", "global_steps", "training_step"),
    "group": ("uid", "group_id", "group", "group_uid", "prompt_id", "example_id"),
    "advantage": ("advantage", "advantages", "adv"),
    "prompt_ids": ("prompt_ids", "prompt_token_ids", "input_ids", "prompts_ids", "input_token_ids",
                   "prompt", "input"),
    "response_ids": ("response_ids", "completion_ids", "response_token_ids", "completion_token_ids", "output_ids",
                     "output_token_ids", "sampled_ids", "generated_ids",
                     "response", "completion", "output"),
    "mask": ("response_mask", "loss_mask", "completion_mask", "tool_mask", "env_mask", "response_loss_mask", "mask"),
    "advantages": ("advantages", "advantage", "token_advantages", "token_level_advantages"),
    "versions": ("weight_versions", "token_versions", "policy_versions", "versions"),
    "oldest": ("min_global_steps", "param_version_start", "policy_version", "param_version", "weight_version",
               "model_version", "version", "rollout_version", "ckpt_step", "inference_step", "min_param_version",
               "behavior_version", "sampled_step"),
    "age": ("off_policy_steps", "off_policy_level", "staleness", "policy_lag"),
    "tools": ("tools", "tool_schemas", "tool_defs", "oai_tools", "tools_kwargs"),
    "ended": ("is_truncated", "truncated", "finish_reason", "finish_reasons", "stop_reason", "stop_condition", "status",
              "termination_reason", "exit_reason", "end_reason", "response_truncated", "truncation",
              "is_clipped", "hit_max_length", "exceeds_max_length"),
    "exchanges": ("turns", "requests", "trajectory", "steps", "segments", "generations", "llm_calls"),
}  # fmt: skip
"""Of a field, the keys under which versions and forks of the systems write it, the likeliest first."""

_CUT = re.compile(
    r"length|trunc|max(?!_turns_reached)|too_long|overlong|time_?out|context_full|compaction_failed", re.I
)


def first(record: Mapping[str, Any], field: str) -> Any:
    """A field's value under the first of its names; None where there is none."""
    return next((record[name] for name in NAMES[field] if record.get(name) is not None), None)


def numbers(value: Any) -> list[Any] | None:
    """A list of numbers; None for anything else. A text that holds one is read."""
    if isinstance(value, str) and value.startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and value:
        return list(value) if all(isinstance(it, int | float) for it in value) else None
    return None


def integer(value: Any) -> int | None:
    """A whole number; None for anything else."""
    number = None if isinstance(value, list | dict) else finite(value)
    return int(number) if number is not None and number == number and abs(number) < 1e15 else None


def cut(record: Mapping[str, Any]) -> str | None:
    """What cut a rollout off by its own word."""
    # verifiers ends each single-turn rollout by max_turns_reached: what says that it isn't truncated is believed.
    if any(record.get(name) is False for name in ("is_truncated", "truncated")):
        return None
    for name in NAMES["ended"]:
        value = record.get(name)
        if isinstance(value, list):  # of each turn
            value = value[-1] if value else None
        if isinstance(value, Mapping):  # SGLang's {"type": "length", "length": 512}
            value = value.get("type")
        if _CUT.search(value) if isinstance(value, str) else finite(value):
            return f"{name} {value}"
    return None


def tokens_of(record: Mapping[str, Any]) -> Tokens | None:
    """The tokens of a record with their mask; None where it lacks either."""
    response, mask = numbers(first(record, "response_ids")), _mask(record)
    if mask is None:
        return None
    prompt = numbers(first(record, "prompt_ids")) or []
    if response is None:  # One list for prompt and response, or none: masks and advantages are compared without ids.
        response = prompt if len(prompt) == len(mask) else [0] * len(mask)
        prompt = []
    if len(mask) == len(prompt) + len(response) != len(response):
        ids, sampled_from = prompt + response, len(prompt)
    else:
        ids, sampled_from = response, 0
    advantages = _list(record, "advantages")
    if advantages is not None and len(advantages) == len(ids) - sampled_from:
        advantages = [0.0] * sampled_from + advantages
    return Tokens(ids, mask, advantages=advantages)


def _list(record: Mapping[str, Any], field: str) -> list[Any] | None:
    return next((it for it in (numbers(record.get(name)) for name in NAMES[field]) if it is not None), None)


def _mask(record: Mapping[str, Any]) -> list[Any] | None:
    """What is trained. TRL multiplies completion_mask by tool_mask, and old verl's loss_mask goes over a mask of
    padding that is response_mask: a token is trained where all of them say so."""
    known = [it for it in (numbers(record.get(name)) for name in NAMES["mask"]) if it is not None]
    known = [it for it in known if len(it) == len(known[0])]
    return [int(all(bits)) for bits in zip(*known, strict=True)] if known else None


def exchanges_of(record: Mapping[str, Any]) -> list[Exchange] | None:
    """The requests of a rollout that keeps the ids of each; None for others."""
    steps = first(record, "exchanges")
    found = []
    for step in steps if isinstance(steps, list) else ():
        held = step.get("tokens") or step if isinstance(step, Mapping) else {}
        prompt, completion = (numbers(first(held, name)) for name in ("prompt_ids", "response_ids"))
        if prompt is not None and completion is not None:
            found.append(Exchange(prompt, completion))
    return found or None


def messages(value: Any) -> list[Mapping[str, Any]] | None:
    """A conversation; None for a text."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list) and value and all(isinstance(it, Mapping) and "role" in it for it in value):
        return value
    return None


def flat_row(record: Mapping[str, Any], place: str, *, trl: bool, offered: tuple[str, ...] | None, val: bool) -> Row:
    """A record of verl's or TRL's as a row."""
    prompt, response = first(record, "prompt"), first(record, "response")
    row = Row(place, integer(first(record, "step")), compared=not val)
    row.reward, row.rewards = _rewards(record) if trl else (finite(_scalar(first(record, "reward"))), {})
    row.advantage = finite(_scalar(first(record, "advantage")))
    group = first(record, "group")
    # verl/trainer/ppo/v1: a key is <uid>_<session>_<index of the output>
    named = re.sub(r"_\d+_\d+\Z", "", group) if isinstance(group, str) else group
    row.group = str(named) if named is not None and not trl else None
    if row.group is None and prompt is not None:
        row.group = hash(json.dumps(prompt, default=str))
    spoken = messages(response)
    row.told = response is not None and not (spoken is None and not isinstance(response, str))
    if row.told:
        row.calls, row.blocks = _calls(spoken, response)
    row.ended = cut(record)
    if row.ended is None and row.told:
        row.ended = texts.cut_off(str(response or "")) if spoken is None else texts.transcript_cut_off(spoken)
    tokens = tokens_of(record)
    row.tokens = None if tokens is None else [tokens]
    row.exchanges = exchanges_of(record)
    row.age = _age(record, row.step)
    row.tools = offered or texts.tool_names(first(record, "tools")) or texts.tools_in_prompt(_text(prompt))
    _note_unusable(row, record, trl=trl)
    return row


def _note_unusable(row: Row, record: Mapping[str, Any], *, trl: bool) -> None:
    """Note the fields that are there and hold nothing that can be checked."""
    if trl and row.reward is None and row.rewards:
        row.broken["rewards"] = "no reward function scored it"
    elif not trl and (problem := unusable(record, NAMES["reward"], lambda it: finite(_scalar(it)) is not None)):
        row.broken["rewards"] = problem
    problem = unusable(
        record, NAMES["advantage"], lambda it: finite(_scalar(it)) is not None or numbers(it) is not None
    )
    if problem:
        (row.broken if trl else row.unread)["advantages"] = problem
    if row.group is None and row.advantage is not None:
        row.unread.setdefault("advantages", "prompt is null, so its group isn't known")
    if row.tokens is None and (problem := unusable(record, NAMES["mask"], lambda it: numbers(it) is not None)):
        row.unread["masks"] = problem
    for field, check in (("exchanges", "continuation"), ("oldest", "versions"), ("age", "versions")):
        held = {"continuation": row.exchanges, "versions": row.age}[check]
        if held is None and (problem := unusable(record, NAMES[field], lambda _: False)):
            row.unread[check] = problem
    if not row.told:
        problem = unusable(record, NAMES["response"], lambda _: False) or "there is no response"
        row.unread |= {"tools": problem, "truncation": problem}


def _age(record: Mapping[str, Any], step: int | None) -> int | None:
    age = integer(first(record, "age"))
    oldest = integer(first(record, "oldest"))
    if oldest is None:
        oldest = min((int(it) for it in _list(record, "versions") or () if it >= 0), default=None)
    if age is None and oldest is not None and step is not None:
        # verl's global_steps counts from 1, and weights of step n − 1 sample step n (trainer_base._compute_metrics).
        age = step - 1 - oldest if oldest != step else 0
    return age


def _scalar(value: Any) -> Any:
    return None if isinstance(value, list | dict) or hasattr(value, "tolist") else value


def _text(prompt: Any) -> str:
    spoken = messages(prompt)
    return str(prompt or "") if spoken is None else "\n".join(map(texts.content, spoken))


def _calls(spoken: list[Mapping[str, Any]] | None, response: Any) -> tuple[list[str], int]:
    if spoken is None:
        return texts.calls_in_text(str(response or ""))
    calls, blocks = texts.calls_in_messages(spoken)
    if not calls and not blocks and len(spoken) == 1:
        return texts.calls_in_text(texts.content(spoken[0]))  # What nothing parsed, nothing answered either.
    return calls, blocks


_NO_PARTS = {name for field in ("step", "advantage", "oldest", "age", "ended", "group") for name in NAMES[field]}
_SELDOM_REWARDS = re.compile("length|num_|count|tokens|turns|epoch|index|time|temperature|_id$", re.IGNORECASE)


def _rewards(record: Mapping[str, Any]) -> tuple[float | None, dict[str, float | None]]:
    """TRL's columns of numbers, as nothing marks rewards, and the sum of the likely ones, as weights aren't kept."""
    parts: dict[str, float | None] = {}
    for name, value in record.items():
        number = None if isinstance(value, bool | str | list | dict) else finite(value)
        if name not in _NO_PARTS and (value is None or number is not None):
            # pandas writes None as nan: the function didn't score this row.
            parts[name] = None if number is None or number != number else number
    named = {name for name in parts if re.search("reward|score", name, re.IGNORECASE)}
    likely = named or {name for name in parts if not _SELDOM_REWARDS.search(name)} or set(parts)
    known = [value for name, value in parts.items() if name in likely and value is not None]
    return (sum(known) if known else None), parts


def is_verl(record: Any) -> bool:
    """Whether a JSON record is a row of verl's."""
    return isinstance(record, dict) and isinstance(record.get("input"), str) and isinstance(record.get("output"), str)


def is_trl(record: Any) -> bool:
    """Whether a record is a row of TRL's completions."""
    return isinstance(record, dict) and "prompt" in record and "completion" in record


def parquet_rows(path: Any) -> Iterator[dict[str, Any]]:
    """The rows of a parquet file, a batch in memory at a time."""
    import pyarrow.parquet as parquet

    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=256):
            yield from batch.to_pylist()
