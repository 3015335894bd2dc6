"""Options of the engines `vllm` and `openai`, and of vLLM's parsers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from toolrl.config.frame import OldNames
from toolrl.errors import ConfigError

OWNED = {
    "model", "tokenizer", "dtype", "seed", "max_num_seqs", "max_model_len",
    "kv_cache_memory_bytes", "gpu_memory_utilization", "logprobs_mode", "async_scheduling",
    "worker_extension_cls", "skip_tokenizer_init", "enable_prefix_caching", "speculative_config", "load_format",
    "distributed_executor_backend", "tensor_parallel_size", "device_ids", "enable_sleep_mode", "quantization",
    "enable_lora", "max_loras", "max_lora_rank", "lora_target_modules",
}  # fmt: skip
"""vLLM's arguments that the config sets by other names, or of which one value alone is right."""


class VllmParserOptions(BaseModel):
    """Options of vLLM's parsers."""

    model_config = ConfigDict(extra="forbid")

    tokenizer: str | None = Field(
        None,
        description="A folder with the model's tokenizer, for use without a run (`toolrl parse`); in a run it is the "
        "model's own.",
    )


BESIDE = 0.4
"""Of a GPU's memory, beside the trainer's model."""


class VllmEngineOptions(BaseModel):
    """How vLLM batches, how much it keeps, and how its weights are checked."""

    model_config = ConfigDict(extra="forbid")
    old_names: ClassVar[OldNames] = {"lora": None, "prefill_tokens": None, "block_size": None, "eager": None}
    scores_tokens: ClassVar = True

    max_batch: int | None = Field(
        None,
        ge=1,
        description="Episodes that decode at once; the others wait for a place. None takes 128 on a CPU and 512 on a "
        "GPU.",
    )
    max_length: int | None = Field(
        None, ge=16, description="Tokens of an episode, prompt included. None takes what the model can attend to."
    )
    cache_gib: float | None = Field(
        None,
        gt=0,
        description="Memory for keys and values in GiB. None takes 1 on a CPU, and on a GPU what `memory_fraction` "
        "leaves beside the weights.",
    )
    memory_fraction: float | None = Field(
        None,
        gt=0,
        le=1,
        description="On a GPU the part of all memory that vLLM may take, weights included. None takes 0.4 beside the "
        "trainer, less if more than two rollout workers share a GPU, and 0.9 on GPUs of its own: `devices`, or what "
        "Ray lends a rollout worker whole.",
    )
    separate_process: bool = Field(
        False,
        description="Hold vLLM's model in a process of its own. Its kernels and threads are then apart from the "
        "trainer's; weights go through a local broadcast instead of from tensor to tensor.",
    )
    devices: list[Annotated[int, Field(ge=0)]] | None = Field(
        None,
        min_length=1,
        description="CUDA devices for vLLM, numbered as torch sees them. None takes the trainer's. Several share the "
        "model (`tensor_parallel`). A rollout worker sees those that `cluster.worker_gpus` lends it, numbered from 0.",
    )
    tensor_parallel: int | None = Field(
        None,
        ge=1,
        description="Processes that each hold a part of every layer; more than one implies `separate_process`. None "
        "takes one for each of `devices`.",
    )
    sleep_level: Literal[0, 1, 2] = Field(
        0,
        description="Give GPU memory back while the trainer works: 2 frees cache and weights, as the trainer's weights "
        "are loaded after each step anyway. 1 moves the weights to the host's memory, which takes longer. 0 keeps all.",
    )
    quantization: Literal["fp8"] | None = Field(
        None,
        description="fp8: vLLM rounds the weights that it gets to 8 bits and computes with those: less memory and more "
        "tokens a second on GPUs that have such kernels. What samples then differs from what is trained, so it needs "
        "`algorithm.importance`.",
    )
    verify_weights: bool = Field(
        True,
        description="After the start and after each weight update compare the log-probabilities of a fixed text, and "
        "digests of all tensors that vLLM received, with the trainer's, and stop the run where they differ.",
    )
    tolerance: float | None = Field(
        None,
        gt=0,
        description="How far these may be apart: in float32 each token's (None takes 1e-4), in 16-bit types the mean "
        "of the smaller four fifths (None takes 2.2 times the model's own noise, which from the second update on is a "
        "warning up to twice that, and 0.5 with `quantization`).",
    )
    engine_args: dict[str, Any] = Field(
        default_factory=dict,
        description="Further arguments of vLLM's `EngineArgs` by name, such as `enforce_eager` or `kv_cache_dtype`.",
    )

    @field_validator("engine_args")
    @classmethod
    def _not_owned(cls, value: dict[str, Any]) -> dict[str, Any]:
        if owned := sorted(value.keys() & OWNED):
            raise ValueError(f"{', '.join(owned)}: set by the engine's other options or by the run")
        return value

    def check_files(self) -> None:
        """Raises ConfigError where vLLM isn't installed."""
        from toolrl_plugin_vllm import packages

        if packages.folder() is None:
            raise ConfigError(f"needs vLLM, which isn't installed: {packages.INSTALL}")

    @property
    def parts(self) -> int:
        """Processes that share the model."""
        return self.tensor_parallel or len(self.devices or (0,))

    @property
    def apart(self) -> bool:
        """Whether the model is held outside of the trainer's process."""
        return self.separate_process or self.parts > 1

    @property
    def weight_receivers(self) -> int:
        """In a rollout worker: processes that receive the trainer's weights, each with a part of the model."""
        return self.parts * int(self.engine_args.get("pipeline_parallel_size", 1))

    def device_bytes(
        self, *, device: int, weights: int, trained: int, token: int, longest: int, episodes: int, overlap: bool
    ) -> tuple[int, int, int]:
        """Of the trainer's GPU, for `toolrl plan`: at least, at most, and while the trainer works. vLLM takes its share
        whole, and must have room there for an episode of the greatest length."""
        if self.devices is not None:
            return 0, 0, 0  # GPUs of its own
        held, gib = weights // self.parts, 2**30
        most = int((self.memory_fraction or BESIDE) * device)
        if self.cache_gib is not None:
            most = held + gib + int(self.cache_gib * gib)
        least = max(held + (self.max_length or longest) * token // self.parts, most)
        return least, most, most if overlap or not self.sleep_level else gib


class OpenaiEngineOptions(BaseModel):
    """Which server to ask, and what it can do."""

    model_config = ConfigDict(extra="forbid")
    old_names: ClassVar[OldNames] = {"on_update": None, "server_logprobs": None}
    scores_tokens: ClassVar = True

    url: str = Field(pattern="^https?://", description="The server's address, such as http://127.0.0.1:8000.")
    dialect: Literal["vllm", "sglang"] = Field(
        "vllm",
        description="How the server is spoken to: vLLM's completions API with token ids, which others have, too, or "
        "SGLang's `/generate`.",
    )
    model: str | None = Field(
        None, description="The name of the model at the server. None takes the only one that it serves."
    )
    api_key: str | None = Field(None, description="Sent as a bearer token; write it as `${NAME}`.")
    timeout_seconds: float = Field(
        600.0, gt=0, description="How long an answer may take, waiting for a place included."
    )
    worker_extension: bool = Field(
        False,
        description="The server is vLLM's with `--worker-extension-cls toolrl_plugin_vllm.extension.WorkerExtension`: "
        "log-probabilities are exact at every temperature, ids that the tokenizer lacks are never sampled, and tied "
        "embeddings are right after an update on a CPU, too.",
    )
    update_weights: bool = Field(
        True,
        description="Hand the trainer's weights over at the start and after each step, by a folder that the server can "
        "read. False for a server that serves the right weights already; then nothing can be trained.",
    )
    verify_weights: bool = Field(
        True,
        description="After the start and after each weight update compare the log-probabilities of a fixed text with "
        "the trainer's, and stop the run where they differ. The server must give those of a prompt, as vLLM's and "
        "SGLang's do.",
    )
    tolerance: float | None = Field(
        None,
        gt=0,
        description="How far these may be apart: in float32 each token's (None takes 1e-4), in 16-bit types the mean "
        "of the smaller four fifths (None takes 2.2 times the model's own noise).",
    )
