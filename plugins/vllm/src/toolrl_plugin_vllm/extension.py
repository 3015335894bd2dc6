"""What is added to vLLM's worker: log-probabilities as toolrl means them, and weights in place.

vLLM mixes `WorkerExtension` into its worker class and calls its methods by name. Importing this module imports vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.sample.sampler import Sampler

from toolrl.errors import EngineError
from toolrl_plugin_torch.probe import digest, read_digests
from toolrl_plugin_torch.sharding.collective_group import Rendezvous, TransferBrokenError
from toolrl_plugin_torch.sharding.transfer import receive

_GREEDY = 1e-5
"""Temperatures below are greedy to vLLM."""


class ExactSampler(Sampler):
    """vLLM's sampler with a few differences.

    Log-probabilities are those of softmax(logits / temperature) over the whole vocabulary, before top-k and top-p. vLLM
    has those before the temperature, and those after both; neither is what the sampling distribution is without its
    truncation. Ids that the tokenizer doesn't know are never sampled. Requests without a seed draw from a generator of
    the sampler's own, as the process's is the trainer's.
    """

    known_ids: int | None = None
    unfinished: Callable[[], Sequence[int]] = staticmethod(tuple)
    """Rows of the batch whose prompt isn't computed to its end; vLLM samples for them, too, and discards it."""
    _temperature: torch.Tensor | None = None

    def __init__(self, mode: Any, device: torch.device) -> None:
        super().__init__(mode)
        self.generator = torch.Generator(device)
        self.topk_topp_sampler.forward = self._draw

    def forward(self, logits: torch.Tensor, sampling_metadata: Any, *args: Any, **kwargs: Any) -> Any:
        self._temperature = sampling_metadata.temperature
        generators = sampling_metadata.generators
        drawn = [generators[row] for row in self.unfinished() if row in generators]
        states = [generator.get_state() for generator in drawn]
        try:
            return super().forward(logits, sampling_metadata, *args, **kwargs)
        finally:
            self._temperature = None
            for generator, state in zip(drawn, states, strict=True):
                generator.set_state(state)

    def _draw(self, logits: torch.Tensor, generators: Any, k: Any, p: Any) -> tuple[torch.Tensor, None]:
        """An id for each row, by the greatest p / e with exponential noise e. Rows of `generators` draw from these."""
        logits, rows = apply_top_k_top_p(logits, k, p), len(logits)
        if logits.device.type == "cpu":  # Its kernel draws a row's noise from a seed.
            seeds = torch.randint(1 << 31, (rows,), generator=self.generator)
            for row, generator in generators.items():
                seeds[row] = torch.randint(1 << 31, (1,), generator=generator)[0]
            return torch.ops._C.fused_gumbel_argmax(logits.float(), seeds), None
        noise = torch.empty_like(logits, dtype=torch.float32)
        if len(generators) < rows:
            noise.exponential_(generator=self.generator)
        for row, generator in generators.items():
            noise[row].exponential_(generator=generator)
        return logits.softmax(-1, dtype=torch.float32).div_(noise).argmax(-1), None

    def compute_logprobs(self, logits: torch.Tensor) -> torch.Tensor:
        # Also called for prompts, from outside of `forward`; those have no temperature.
        if self._temperature is not None:
            temperature = torch.where(self._temperature < _GREEDY, 1.0, self._temperature)
            logits = logits.float() / temperature.unsqueeze(1)
        return logits.log_softmax(dim=-1, dtype=torch.float32)

    def apply_logits_processors(self, logits: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.known_ids is not None and self.known_ids < logits.shape[-1]:
            logits[:, self.known_ids :] = float("-inf")
        return super().apply_logits_processors(logits, *args, **kwargs)


class WorkerExtension:
    """Methods that vLLM's worker gets. Their names must not be those of a worker's own."""

    model_runner: Any
    rank: int
    reload_weights: Callable[..., None]
    """The worker's own, which sets vLLM's config for kernels that are built anew; the runner's doesn't."""

    def toolrl_setup(self, known_ids: int | None, seed: int) -> None:
        """Replace the sampler. A server may be asked to again, by each run that it serves. The processes that share a
        model draw the same numbers by `seed`, and data-parallel engines others."""
        runner = self.model_runner
        if type(runner.sampler) is Sampler:
            runner.sampler = ExactSampler(runner.sampler.logprobs_mode, runner.device)
            if runner.device.type == "cpu":
                runner.sampler.unfinished = lambda: _unfinished(runner)
                _take_back_no_draws(runner)
        sampler = runner.sampler
        if not isinstance(sampler, ExactSampler):
            raise RuntimeError(f"the sampler of {type(runner).__name__} is a {type(sampler).__name__}")
        sampler.known_ids = known_ids
        sampler.generator.manual_seed(seed + runner.parallel_config.data_parallel_index)

    def toolrl_load_folder(self, folder: str) -> dict[str, int]:
        """Load the weights of a checkpoint's folder, in place. Gives the digest of each."""
        return self.toolrl_load(_read_folder(Path(folder)))

    def toolrl_receive(self, at: Rendezvous) -> dict[str, int] | TransferBrokenError:
        """Load the weights that the trainer's process broadcasts, in place; `at` is the first of vLLM's processes'.
        Gives the digest of each, or what broke the transfer: vLLM would raise it as a plain RuntimeError."""
        try:
            return self.toolrl_load(receive(replace(at, rank=at.rank + self.rank)))
        except TransferBrokenError as error:
            return error

    def toolrl_load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> dict[str, int]:
        """Load weights under the names of a checkpoint, in place. Gives the digest of each."""
        runner = self.model_runner
        tied = _tied_heads(runner.model)
        found: dict[str, torch.Tensor] = {}

        def received() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in weights:
                found[name] = digest(tensor.detach())
                yield name, tensor

        with torch.inference_mode(False), torch.no_grad():
            _pack_experts_again(runner.model)
            self.reload_weights(weights_iterator=received(), is_checkpoint_format=True)
        for head, embedding in tied:
            _tie(head, embedding)
        return read_digests(found)


def _read_folder(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise EngineError(f"there are no *.safetensors in {str(folder)!r}", where="engine")
    for path in paths:
        with safe_open(path, framework="pt") as file:
            yield from ((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118 - it is no mapping


def _unfinished(runner: Any) -> list[int]:
    return [int(row) for row in runner.discard_request_mask.np[: runner.input_batch.num_reqs].nonzero()[0]]


def _take_back_no_draws(runner: Any) -> None:
    """After a step vLLM turns the generators of these rows back by what a CUDA generator advances in a draw. A CPU's
    can't be turned back like that, and the step would raise. The sampler has done it already, so vLLM must not see them
    then."""
    keep_books = runner._bookkeeping_sync

    def without_generators(*args: Any, **kwargs: Any) -> Any:
        generators = runner.input_batch.generators
        hidden = {row: generators.pop(row) for row in _unfinished(runner) if row in generators}
        try:
            return keep_books(*args, **kwargs)
        finally:
            generators.update(hidden)

    runner._bookkeeping_sync = without_generators


def _pack_experts_again(model: torch.nn.Module) -> None:
    """On a CPU vLLM packs experts when it builds their kernel, which a reload doesn't do: it would write weights as
    they come into what is read as packed. Without a kernel it builds, and packs, again."""
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None and next(layer.parameters()).device.type == "cpu":
            method.moe_kernel = None


def _tied_heads(model: torch.nn.Module) -> list[tuple[torch.nn.Module, torch.nn.Module]]:
    """Output layers that share their weight with an embedding, and that embedding."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    layers = [layer for layer in model.modules() if isinstance(layer, VocabParallelEmbedding)]
    embeddings = [layer for layer in layers if not isinstance(layer, ParallelLMHead)]
    return [
        (head, embedding)
        for head in layers
        if isinstance(head, ParallelLMHead)
        for embedding in embeddings
        if head.weight.data_ptr() == embedding.weight.data_ptr()
    ]


def _tie(head: Any, embedding: Any) -> None:
    """A checkpoint holds a shared weight once, under the embedding's name, and vLLM's reload leaves the output layer
    with what it had before. On a CPU it multiplies with a packed copy besides, which is packed again here."""
    head.weight = embedding.weight
    if embedding.weight.device.type == "cpu":
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

        dispatch_cpu_unquantized_gemm(head, remove_weight=False)
