"""One GRPO step with tools against TRL's, on the same weights and the same sampled tokens: rollout and update.

    python tests/benchmarks/grpo_step.py                       # prints seconds and ratios
    python tests/benchmarks/grpo_step.py --json OUT.json       # writes them too
    python tests/benchmarks/grpo_step.py --modes instant slow  # those modes only

A ratio is ours over TRL's: `ratio_instant`, `ratio_slow` … are of a whole step, `ratio_slow_async` … of the time for
a sample. Eight prompts of eight episodes each, two turns: words and a tool call, the tool's answer, words. The prompt
with the tool's schema has about 240 tokens. The model is a Qwen3 of 5M random parameters with the chat template of
Qwen2.5, float32, one thread. The modes:

    instant         a completion, the tool's tokens among it, has 128 tokens: nothing is padded on either side
    instant_spread  most completions have 60 to 80 tokens, and one of each group has 128
    slow            as `instant`, and the tool takes half a second

A slow tool is a plain function that blocks, on both sides. TRL 1.16 runs the calls of a step one after another; it
would also do so with a coroutine function, for it gathers only the calls of one completion and waits for them before it
looks at the next one (`GRPOTrainer._tool_call_loop`).

Both sides compute the probabilities of every token as they always do; which token is taken then comes from a script, so
that both sample the same. TRL's side is `GRPOTrainer` with `tools=`, one step of `train()`, bfloat16 and gradient
checkpointing switched off, in micro-batches of `--trl-batch` episodes. Ours is the runner on the embedded engine,
`PolicyTrainer.update`, and the hand-over of weights, without `share_prefix` set anywhere. Each round runs both, every
other round in the opposite order; a figure is the median of the rounds, a ratio the median of the rounds' ratios. `cpu`
is processor time of the whole step, which says more on a machine that is busy with other work.

In the mode `slow` a third side is `async`: the training loop with `max_staleness`, which samples while it
updates (`grpo_step_overlapped.py`); sampling and updating are a thread each then. Its step is the mean of several in a
row, after as many as it takes until samples come in as fast as they are used up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from small_tokenizer import VOCABULARY, make_tokenizer

import toolrl_plugin_transformers.batch as engine_batch
import toolrl_plugin_transformers.engine as engine_module
from toolrl.config.tool_policy import PolicyOptions
from toolrl.protocols import BuildContext
from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.runner import Runner
from toolrl.tools import as_toolset, tool
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, Group, Message, Score, Task
from toolrl_plugin_chat.template import TemplateFormat
from toolrl_plugin_qwen.hermes import HermesParser
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.options import ModelConfig, TrainerConfig
from toolrl_plugin_torch.policy import load_policy
from toolrl_plugin_torch.trainer import PolicyTrainer
from toolrl_plugin_transformers.options import TransformersEngineOptions

PROMPTS, GROUP, COMPLETION = 8, 8, 128
TARGETS = {"instant": 0.25, "instant_spread": 0.25, "slow": 0.2, "slow_async": 0.1}
"""Ours over TRL's, at most."""
LEARNING_RATE = 1e-5


@dataclass(frozen=True)
class Mode:
    """What a run is like."""

    spread: bool = False
    """Completions of different length."""
    latency: float = 0.0
    """Seconds that the tool takes."""


MODES = {
    "instant": Mode(),
    "instant_spread": Mode(spread=True),
    "slow": Mode(latency=0.5),
}
_LATENCY = [0.0]
"""What the tool of both sides takes now."""


@dataclass(frozen=True)
class Times:
    """Seconds of a step."""

    rollout: float
    update: float
    cpu: float

    @property
    def step(self) -> float:
        return self.rollout + self.update


SIZE = {
    "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip
"""Of the model."""


# What both sides have in common: model, questions, what is sampled, the tool's answer, the rewards.


def write_model(folder: Path) -> transformers.PreTrainedTokenizerFast:
    """A random Qwen3 and its tokenizer."""
    tokenizer = make_tokenizer(json.dumps(transformers.utils.get_json_schema(multiply_for_trl)))
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        **SIZE, vocab_size=VOCABULARY, max_position_embeddings=2048, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def question(number: int) -> str:
    chance = random.Random(f"question {number}")
    a, b = chance.randrange(100, 1000), chance.randrange(100, 1000)
    return f"A warehouse has {a} shelves with {b} boxes on each. How many boxes are there?"


def numbers(prompt: int, episode: int) -> tuple[int, int]:
    """What an episode calls the tool with."""
    chance = random.Random(f"call {prompt} {episode}")
    return chance.randrange(100, 1000), chance.randrange(100, 1000)


def multiply_for_trl(a: int, b: int) -> str:
    """Multiply two whole numbers.

    Args:
        a: The first factor.
        b: The second factor.
    """
    return product(a, b)


def product(a: int, b: int) -> str:
    """What the tool does on both sides."""
    time.sleep(_LATENCY[0])
    return str(a * b)


multiply_for_trl.__name__ = "multiply"
del multiply_for_trl.__annotations__["return"]  # TRL's schema would tell of it, ours doesn't


def reward(prompt: int, episode: int) -> float:
    """Half of a group is right, in no order."""
    return float(random.Random(f"reward {prompt}").sample(range(GROUP), GROUP).index(episode) % 2)


class Script:
    """The sampled tokens of every turn. The second turn is as long as the completion's length asks for."""

    def __init__(self, tokenizer: Any, mode: Mode) -> None:
        self._tokenizer = tokenizer
        self._mode = mode
        self._words = [t for t in range(500, VOCABULARY - 10) if tokenizer.decode([t]).strip().isalpha()]
        self._turns = {(p, e): self._episode(p, e) for p in range(PROMPTS) for e in range(GROUP)}

    def _episode(self, prompt: int, episode: int) -> list[list[int]]:
        chance = random.Random(f"words {prompt} {episode}")
        a, b = numbers(prompt, episode)
        call = json.dumps({"name": "multiply", "arguments": {"a": a, "b": b}})
        end = [self._tokenizer.eos_token_id]
        words = chance.randrange(1, 5) if self._mode.spread else 12
        first = [*chance.choices(self._words, k=words), *self._ids(f"\n<tool_call>\n{call}\n</tool_call>"), *end]
        answer = f"\n<|im_start|>user\n<tool_response>\n{a * b}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        given = len(first) + len(self._ids(answer)) + 1
        left = COMPLETION - given
        if self._mode.spread and episode:
            left = chance.randrange(min(1, left), max(80 - given, 2))
        return [first, [*chance.choices(self._words, k=left), *end]]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def turn(self, prompt: int, episode: int, turn: int) -> list[int]:
        return self._turns[prompt, episode][turn]

    @property
    def sampled(self) -> int:
        """Tokens of all turns."""
        return sum(len(turn) for turns in self._turns.values() for turn in turns)


# Ours.


@tool
def multiply(a: int, b: int) -> str:
    """Multiply two whole numbers.

    Args:
        a: The first factor.
        b: The second factor.
    """
    return product(a, b)


class Reward:
    """By the place of the episode."""

    async def score(self, episode: Episode) -> Score:
        return Score(reward(_prompt_of(episode.group), episode.index))


def _prompt_of(group: str) -> int:
    return int(group.split("/")[1])


class ScriptedBatch(engine_batch.Batch):
    """The engine's batch; the token that it has drawn for a row is exchanged for the script's, with its
    log-probability."""

    script: Script

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._turn: dict[Any, int] = {}
        self._turns: Counter[str] = Counter()

    def add(self, request: Any) -> None:
        self._turn[request] = self._turns[request.session]
        self._turns[request.session] += 1
        super().add(request)

    def _accept(self, rows: Sequence[Any], ids_B: torch.Tensor, logprobs_B: torch.Tensor, *rest: Any) -> list[Any]:
        wanted = []
        for row in rows:
            group, _, episode = row.session.rpartition("#")
            turn = self.script.turn(_prompt_of(group), int(episode), self._turn[row])
            wanted.append(turn[len(row.logprobs)])
        drawn_B = _LAST[0].gather(1, ids_B[:, None])[:, 0]
        ids_B.copy_(torch.tensor(wanted))
        logprobs_B += _LAST[0].gather(1, ids_B[:, None])[:, 0] - drawn_B
        return super()._accept(rows, ids_B, logprobs_B, *rest)


_LAST: list[torch.Tensor] = []
"""The logits that the engine has drawn from."""


def _remembering(sample: Callable[..., Any]) -> Callable[..., Any]:
    def remember(logits_BV: torch.Tensor, *rest: Any) -> Any:
        _LAST[:] = [logits_BV]
        return sample(logits_BV, *rest)

    return remember


class OurSide:
    """A step as the training loop makes it."""

    overlap = False
    """Whether the engine samples while the trainer updates."""

    def __init__(self, folder: Path, script: Script, output: Path) -> None:
        ScriptedBatch.script = script
        self._patched = engine_batch.sample, engine_module.Batch
        engine_batch.sample = _remembering(engine_batch.sample)
        engine_module.Batch = ScriptedBatch
        self._loop = asyncio.new_event_loop()
        policy = load_policy(ModelConfig(path=str(folder), dtype="float32"), str(folder), torch.device("cpu"))
        self._trainer = PolicyTrainer(
            policy,
            TrainerConfig(steps=1000, learning_rate=LEARNING_RATE),
            AlgorithmConfig(preset="grpo", importance={} if self.overlap else None),
            output,
            temperature=1.0,
            longest=COMPLETION,
        )
        context = BuildContext(
            "bench", tokenizer=policy.tokenizer, weights=self._trainer.weights(), overlap=self.overlap
        )
        self._engine = engine_module.TransformersEngine(TransformersEngineOptions(), context)
        box = ToolBox([ToolEntry("multiply", as_toolset(multiply, None, context), policy=PolicyOptions())])
        environment = Environment(
            "default", HermesParser(), TemplateFormat(None, context), box, [NamedReward("bench", Reward())], max_turns=2
        )
        self._box = box
        self._runner = Runner(self._engine, {"default": environment})
        self._tasks = [Task(str(number), (Message("user", question(number)),)) for number in range(PROMPTS)]
        self._loop.run_until_complete(self._start())
        self.groups: list[Group] = []

    async def _start(self) -> None:
        await self._engine.start()
        await self._box.start()

    def step(self) -> Times:
        """One step, timed."""
        begin, cpu = time.perf_counter(), time.process_time()
        limits = Limits(max_turn_tokens=COMPLETION, max_episode_tokens=1000)
        rollout = self._runner.run(self._tasks, GROUP, limits, round_id=f"step-{self._trainer.step}")
        self.groups = self._loop.run_until_complete(rollout)
        sampled = time.perf_counter()
        self.metrics = self._trainer.update(self.groups)
        update = self._engine.update_weights(self._trainer.weights(), self._trainer.step)
        self._loop.run_until_complete(update)
        return Times(sampled - begin, time.perf_counter() - sampled, time.process_time() - cpu)

    def episodes(self) -> list[tuple[list[int], list[int]]]:
        """Prompts and completions of the last step."""
        episodes = [episode for group in self.groups for episode in group.episodes]
        return [(list(e.ids[: e.prompt_length]), list(e.ids[e.prompt_length :])) for e in episodes]

    def close(self) -> None:
        self._loop.run_until_complete(self._engine.stop())
        self._loop.run_until_complete(self._box.stop())
        self._loop.close()
        engine_batch.sample, engine_module.Batch = self._patched


# TRL's.


class Scripted(transformers.LogitsProcessor):
    """Leaves nothing but the script's token of a turn."""

    def __init__(self, script: Script, turn: int, length: int) -> None:
        self._script, self._turn, self._length = script, turn, length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        place = input_ids.shape[1] - self._length
        wanted = []
        for row in range(scores.shape[0]):
            turn = self._script.turn(row // GROUP, row % GROUP, self._turn)
            wanted.append(turn[place] if place < len(turn) else turn[-1])
        index = torch.tensor(wanted, device=scores.device)[:, None]
        return torch.full_like(scores, -torch.inf).scatter_(1, index, scores.gather(1, index))


class TrlSide:
    """A step of TRL's trainer, a new trainer each time, of which only the step is timed."""

    def __init__(self, folder: Path, script: Script, output: Path, batch: int) -> None:
        self._folder, self._script, self._output, self._batch = folder, script, output, batch
        self._episodes: list[tuple[list[int], list[int]]] = []

    def step(self) -> Times:
        """One step, timed."""
        trainer = self._make()
        seconds, cpu, rollouts = [0.0, 0.0], [0.0, 0.0], [0.0]
        generate = trainer._generate

        def timed(prompts: list[Any]) -> Any:
            start = time.perf_counter()
            result = generate(prompts)
            rollouts.append(time.perf_counter() - start)
            self._episodes = [(list(prompt), list(ids)) for prompt, ids in zip(result[0], result[1], strict=True)]
            return result

        class Clock(transformers.TrainerCallback):
            def on_step_begin(self, *arguments: Any, **rest: Any) -> None:
                seconds[0], cpu[0] = time.perf_counter(), time.process_time()

            def on_step_end(self, *arguments: Any, **rest: Any) -> None:
                seconds[1], cpu[1] = time.perf_counter(), time.process_time()

        trainer._generate = timed
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.add_callback(Clock())
        trainer.train()
        assert len(rollouts) == 2, "TRL sampled more than once in a step"
        return Times(sum(rollouts), seconds[1] - seconds[0] - sum(rollouts), cpu[1] - cpu[0])

    def episodes(self) -> list[tuple[list[int], list[int]]]:
        """Prompts and completions of the last step."""
        return self._episodes

    def _make(self) -> Any:
        import trl
        from datasets import Dataset

        arguments = trl.GRPOConfig(
            output_dir=str(self._output), loss_type="grpo", beta=0.0, temperature=1.0, learning_rate=LEARNING_RATE,
            max_completion_length=COMPLETION, num_generations=GROUP, max_steps=1, shuffle_dataset=False,
            per_device_train_batch_size=self._batch, gradient_accumulation_steps=PROMPTS * GROUP // self._batch,
            max_tool_calling_iterations=1, bf16=False, gradient_checkpointing=False, use_cpu=True,
            report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
            model_init_kwargs={"dtype": "float32"},
        )  # fmt: skip
        rows = [{"prompt": [{"role": "user", "content": question(n)}], "number": n} for n in range(PROMPTS)]

        def score(completions: list[Any], number: list[int], **_: Any) -> list[float]:
            return [reward(prompt, place % GROUP) for place, prompt in enumerate(number)]

        trainer = trl.GRPOTrainer(
            model=str(self._folder), reward_funcs=score, args=arguments, train_dataset=Dataset.from_list(rows),
            processing_class=transformers.AutoTokenizer.from_pretrained(self._folder), tools=[multiply_for_trl],
        )  # fmt: skip
        model, turn = trainer.model, iter(range(2))
        generate = model.generate

        def scripted(*, input_ids: torch.Tensor, **rest: Any) -> torch.Tensor:
            assert input_ids.shape[0] == PROMPTS * GROUP, "TRL sampled for a part of the episodes"
            processor = Scripted(self._script, next(turn), input_ids.shape[1])
            out: torch.Tensor = generate(input_ids=input_ids, logits_processor=[processor], **rest)
            return out

        model.generate = scripted
        return trainer


def compare(name: str, rounds: int, options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Medians of a mode."""
    from grpo_step_overlapped import OverlappedSide

    mode = MODES[name]
    with tempfile.TemporaryDirectory() as directory:
        folder, output = Path(directory) / "model", Path(directory) / "trl"
        script = Script(write_model(folder), mode)
        sides: dict[str, Any] = {
            "ours": OurSide(folder, script, Path(directory)),
            "trl": TrlSide(folder, script, output, options.trl_batch),
        }
        if mode.latency:
            sides["async"] = OverlappedSide(folder, script, Path(directory), options.staleness, options.async_steps)
        times: dict[str, list[Times]] = {side: [] for side in sides}
        for number in range(rounds + 1):
            _LATENCY[0] = mode.latency if number else 0.0
            for side in list(sides) if number % 2 else reversed(list(sides)):
                if not number and side == "async":
                    continue  # It warms up in every round.
                spent = sides[side].step()
                say(f"{name} {'warm-up' if not number else f'round {number}':8} {side:5} {spent}")
                if number:
                    times[side].append(spent)
            check(sides["ours"], sides["trl"])
        episodes = {side: sides[side].episodes() for side in ("ours", "trl")}
        overlapped = sides["async"].finish() if "async" in sides else {}
        sides["ours"].close()
    return {
        **_ratios(times),
        **overlapped,
        "prompt_tokens": {side: statistics.mean(len(p) for p, _ in found) for side, found in episodes.items()},
        "completion_tokens": {side: statistics.mean(len(c) for _, c in found) for side, found in episodes.items()},
        "sampled_tokens": script.sampled,
        "seconds": {side: _medians(spent) for side, spent in times.items()},
    }


def _ratios(times: dict[str, list[Times]]) -> dict[str, Any]:
    """Ours over TRL's, the overlapped training's too where it was measured."""
    figures: dict[str, Any] = {}
    for side, suffix in (("ours", ""), ("async", "_async")):
        if side in times:
            pairs = list(zip(times[side], times["trl"], strict=True))
            ratios = [mine.step / other.step for mine, other in pairs]
            figures |= {
                f"ratio{suffix}": statistics.median(ratios),
                f"ratios{suffix}": ratios,
                f"ratio{suffix}_cpu": statistics.median(mine.cpu / other.cpu for mine, other in pairs),
            }
    return figures


def _medians(times: Sequence[Times]) -> dict[str, float]:
    return {part: statistics.median(getattr(t, part) for t in times) for part in ("step", "rollout", "update", "cpu")}


def check(ours: OurSide, trl: TrlSide) -> None:
    """Both have the same completions after prompts of nearly the same length (the schemas that the two make of a
    function differ by a few tokens), and ours trained on all of what its engine sampled."""
    mine, other = ours.episodes(), trl.episodes()
    assert [ids for _, ids in mine] == [ids for _, ids in other], "the two sides' completions differ"
    assert max(len(ids) for _, ids in mine) == COMPLETION
    assert all(abs(len(one) - len(two)) <= 8 for (one, _), (two, _) in zip(mine, other, strict=True))
    assert ours.metrics["episodes/trained"] == PROMPTS * GROUP
    assert ours.metrics["logprob_mismatch/max"] < 1e-3


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="timed rounds, after one that isn't")
    parser.add_argument("--slow-rounds", type=int, default=2, help="the same of the mode `slow`")
    parser.add_argument("--trl-batch", type=int, default=8, help="episodes in a micro-batch of TRL")
    parser.add_argument("--staleness", type=int, default=2, help="max_staleness of the overlapped training")
    parser.add_argument("--async-steps", type=int, default=4, help="timed steps of the overlapped training")
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    top: dict[str, float] = {}
    details: dict[str, Any] = {}
    for name in arguments.modes:
        rounds = arguments.rounds if not MODES[name].latency else arguments.slow_rounds
        details[name] = compare(name, rounds, arguments, lambda line: print(line, file=sys.stderr, flush=True))
        ratios = {f"ratio_{name}{suffix}": details[name].get(f"ratio{suffix}") for suffix in ("", "_async")}
        top |= {key: value for key, value in ratios.items() if value is not None}
        print(json.dumps({name: details[name]}, indent=1), flush=True)
    print(json.dumps(top, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(top | details, indent=1) + "\n", encoding="utf-8")
    return int(any(top.get(f"ratio_{name}", 0.0) > target for name, target in TARGETS.items()))


if __name__ == "__main__":
    # Its other half imports this file by its name.
    sys.modules["grpo_step"] = sys.modules["__main__"]
    sys.exit(main())
