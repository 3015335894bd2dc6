"""Builds vLLM's engine in this process, and takes it down. Runs in the engine's thread."""

from __future__ import annotations

import contextlib
import math
import os
import random
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from toolrl.errors import ConfigError, EngineError
from toolrl.protocols import BuildContext
from toolrl_plugin_vllm import packages
from toolrl_plugin_vllm.options import BESIDE, VllmEngineOptions
from toolrl_plugin_vllm.requests import new_seed

GIB = 1 << 30
ALONE = 0.9
"""Of a GPU's memory, on devices of its own."""
PER_START = {
    # Read where the executor is chosen: without it the worker would be a process of its own on a CPU, always.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # A fork of a process that has threads, as every trainer has, may hang.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
"""What vLLM reads while it starts, beside what it reads when it is imported."""
_OVERRIDES = {"head_dtype": "float32"}
"""Of the model's config. The trainer's logits are float32, and logits rounded to 16 bits move a log-probability by 0.01
to 0.02. Without effect on a float32 model."""
_EXTENSION = "toolrl_plugin_vllm.extension.WorkerExtension"


def build(options: VllmEngineOptions, context: BuildContext, *, model: str, known_ids: int | None) -> Any:
    """vLLM's `LLMEngine` for the config in a folder, with weights of no use and the sampler of `extension.py`. Raises
    EngineError, ConfigError."""
    packages.prepare_environment()
    try:
        with unchanged(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            from torch import distributed
            from vllm.platforms import current_platform

            ranks = distributed.get_world_size() if distributed.is_initialized() else 1
            check_ranks(options, context.device, ranks)
            given = arguments(
                options,
                model=model,
                dtype=context.dtype,
                cpu=bool(current_platform.is_cpu()),
                device=context.device,
                gpus=lent_gpus(),
                deterministic=context.deterministic,
                joins=ranks > 1,  # A vLLM of this process alone leaves a group of one rank behind.
            )
            engine = _engine(given, _cuda_index(context.device) or 0)
            try:
                engine.collective_rpc("toolrl_setup", args=(known_ids, new_seed()))
            except BaseException:
                take_down(engine)
                raise
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "vllm":
            raise
        raise ConfigError("the engine needs vLLM, which isn't installed", hint=packages.INSTALL) from error
    except (ImportError, OSError) as error:
        raise EngineError(f"vLLM can't be imported: {error}", hint="Run `toolrl doctor vllm`.") from error
    return engine


def arguments(
    options: VllmEngineOptions,
    *,
    model: str,
    dtype: Any,
    cpu: bool,
    device: str = "cuda",
    gpus: float | None = None,
    deterministic: bool = False,
    joins: bool = False,
) -> dict[str, Any]:
    """Keyword arguments of vLLM's `EngineArgs`; `gpus` is what Ray lent this process, `joins` says whether it is a rank
    of a process group, which vLLM then takes part in."""
    cache = options.cache_gib if options.cache_gib is not None else 1.0 if cpu else None
    trainers, own = _cuda_index(device), options.devices
    joins = joins and not options.apart
    if own is None and trainers and options.parts == 1 and not joins:
        own = [trainers]  # vLLM itself would take the first
    on_trainers = trainers in own if own is not None else joins or trainers in range(options.parts)
    # What Ray lends a rollout worker whole has no trainer on it.
    shared = trainers is not None and on_trainers and (gpus is None or gpus < 1)
    batch = options.max_batch or (128 if cpu else 512)
    chosen: dict[str, Any] = {
        "model": model,
        "dtype": str(dtype).removeprefix("torch.") if dtype is not None else "auto",
        "load_format": "dummy",
        "max_num_seqs": batch,
        "max_num_batched_tokens": max(2048 if cpu else 8192, batch),
        "max_model_len": options.max_length,
        "kv_cache_memory_bytes": int(cache * GIB) if cache is not None else None,
        "gpu_memory_utilization": _memory_fraction(options, shared=shared, gpus=gpus),
        "block_size": 32 if cpu else None,
        "enforce_eager": cpu,
        "enable_prefix_caching": True,
        "logprobs_mode": "raw_logprobs",
        # Else vLLM begins a step while the one before is read. What it began with older weights it drops at an update.
        "async_scheduling": False if cpu or deterministic else None,
        "worker_extension_cls": _EXTENSION,
        "use_tqdm_on_load": False,
        "disable_log_stats": True,
        "generation_config": "vllm",
        "distributed_executor_backend": "mp" if options.apart else "external_launcher" if joins else None,
        "tensor_parallel_size": options.parts if options.parts > 1 else None,
        "device_ids": own,
        "enable_sleep_mode": True if options.sleep_level else None,
        "quantization": options.quantization,
        "seed": 0,
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    overrides = {"hf_overrides": {**_OVERRIDES, **(options.engine_args.get("hf_overrides") or {})}}
    return {**given, **options.engine_args, **overrides}


def check_ranks(options: VllmEngineOptions, device: str, ranks: int) -> None:
    """Raises ConfigError if several trainer ranks of this host, this one on `device`, would start vLLM on one GPU."""
    trainers = _cuda_index(device)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks)) if ranks > 1 else 1  # torchrun's count of them
    if trainers is None or here == 1 or (options.parts == 1 and options.devices in (None, [trainers])):
        return
    wanted = f"devices: {options.devices}" if options.devices else f"tensor_parallel: {options.parts}"
    raise ConfigError(
        f"{wanted} with {here} trainer ranks on a host: each rank starts vLLM on the same GPUs; expected neither "
        "option, for a vLLM of each rank on the rank's GPU",
        where="engine.options",
        hint="For a model that is too large for that, sample on Ray's rollout workers, with cluster.worker_gpus.",
    )


def lent_gpus() -> float | None:
    """GPUs that Ray lent this process, below 1 for a share of one; None where it is no worker of Ray's."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return None if context.get_actor_id() is None else float(context.get_assigned_resources().get("GPU", 0.0))


def _memory_fraction(options: VllmEngineOptions, *, shared: bool, gpus: float | None) -> float:
    """The part of a GPU's memory that vLLM may take; `shared` says whether the trainer's model is there, too. Workers
    that share a GPU share it."""
    if options.memory_fraction is not None:
        return options.memory_fraction
    workers = max(1, math.floor(1 / gpus + 1e-9)) if gpus else 1
    return min(BESIDE, 2 * BESIDE / workers) if shared else ALONE


def _cuda_index(device: str) -> int | None:
    """1 of cuda:1, 0 of cuda, None of cpu."""
    kind, _, index = device.partition(":")
    return int(index or 0) if kind == "cuda" else None


def _engine(given: dict[str, Any], device: int = 0) -> Any:
    """`device` is the number of the CUDA device of a rank."""
    from torch import distributed, get_num_threads
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.executor import Executor

    try:
        settings = EngineArgs(**given)
    except TypeError as error:
        raise ConfigError(f"vLLM's {error}", where="engine.options.engine_args") from error
    variables = PER_START | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(get_num_threads()))}
    if given.get("distributed_executor_backend") == "external_launcher":
        variables |= {"RANK": str(distributed.get_rank()), "LOCAL_RANK": str(device)}
    with environment(variables):
        config = settings.create_engine_config()
        return LLMEngine(config, Executor.get_class(config), log_stats=False, multiprocess_mode=False)


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def in_process(engine: Any) -> bool:
    """Whether the model is in this process, and not in one or several of vLLM's workers."""
    return engine.vllm_config.parallel_config.distributed_executor_backend in ("uni", "external_launcher")


def add(engine: Any, name: str, prompt: list[int], params: Any) -> None:
    """Give a request to vLLM's engine. What vLLM refuses raises one of several exceptions."""
    from tokenizers.decoders import DecodeStream
    from vllm.inputs import tokens_input

    inner = engine.add_request(name, tokens_input(prompt), params)
    detokenizer = engine.output_processor.request_states[inner].detokenizer
    if hasattr(detokenizer, "stream"):
        # vLLM's stream begins with the prompt: where that ends inside a character, its last text would come out with
        # the first token, and a stop string could be found in what wasn't sampled.
        detokenizer.stream = DecodeStream(skip_special_tokens=False)


def take_down(engine: Any) -> None:
    """Free what the engine holds, so that another can be built in this process."""
    from vllm.distributed import parallel_state
    from vllm.v1.engine import core

    if engine.vllm_config.parallel_config.distributed_executor_backend != "external_launcher":
        engine.engine_core.shutdown()
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_distributed_environment()
        return
    # The default group is the trainer's, and vLLM's shutdown would destroy it. vLLM's own groups end with it.
    cleanup, core.cleanup_dist_env_and_memory = core.cleanup_dist_env_and_memory, lambda: None
    try:
        engine.engine_core.shutdown()
    finally:
        core.cleanup_dist_env_and_memory = cleanup
    for name, value in vars(parallel_state).items():
        if isinstance(value, parallel_state.GroupCoordinator):
            setattr(parallel_state, name, None)


@contextlib.contextmanager
def unchanged() -> Iterator[None]:
    """Keep what is the whole process's: vLLM seeds every random generator, and on a CPU it disables
    `torch.set_num_threads`."""
    import torch

    set_threads, threads, dtype = torch.set_num_threads, torch.get_num_threads(), torch.get_default_dtype()
    state, numpy = random.getstate(), sys.modules.get("numpy")
    drawn = numpy.random.get_state() if numpy is not None else None
    # The number of threads is each thread's own until it is set there.
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        random.setstate(state)
        if numpy is not None:
            numpy.random.set_state(drawn)
