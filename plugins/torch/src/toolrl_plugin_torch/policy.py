"""The policy: the model that is trained, its tokenizer, and its weights as engines take them."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from toolrl.errors import ConfigError, first_line
from toolrl.loop.ranks import ONE, Ranks
from toolrl_plugin_torch.adapters.lora import LoraAdapter, MergedTensors, adapter_base, merge_from
from toolrl_plugin_torch.checkpoints.layout import checkpoint_tensors, read_checkpoint, write_safetensors
from toolrl_plugin_torch.config_changes import ConfigChanges
from toolrl_plugin_torch.device import pick_dtype
from toolrl_plugin_torch.model_path import broken_model
from toolrl_plugin_torch.options import ModelConfig
from toolrl_plugin_torch.sharding.dtensor import gathered, put
from toolrl_plugin_torch.weights import PolicyWeights

logger = logging.getLogger(__name__)
SOURCE_DTYPE = "toolrl_source_dtype"
"""Key in config.json of checkpoints: the precision of the model that the run began with, where it is a lower one."""


@dataclass
class PolicyModel:
    """A causal language model with its tokenizer; a vision-language model also with its processor.

    Where several processes train, `shards` holds this rank's part of the weights, and the parameters of `model` are on
    the meta device, but for an adapter's. All ranks call the methods that give weights together, then."""

    model: Any
    tokenizer: Any
    source: str
    device: torch.device
    dtype: torch.dtype
    processor: Any = None
    """A transformers processor, or only the image processor where the whole one can't be loaded; None for text."""
    adapter: LoraAdapter | None = None
    """The LoRA adapter in the model, where that alone is trained."""
    compile: bool = False
    """Whether updates compile its layers."""
    longest: int | None = None
    """Most tokens of a sequence of the run; None if that isn't known."""
    changes: ConfigChanges = field(default_factory=ConfigChanges)
    """What the run changed in the model's config."""
    ranks: Ranks = ONE
    shards: Any = None
    """The sharded model (`sharding.fsdp.ShardedModel`); None in one process."""
    _copy: Any = None
    """A whole copy of the sharded model, for an engine that reads a module."""

    @property
    def live(self) -> Any:
        """The module with the weights that are trained."""
        return self.model if self.shards is None else self.shards.model

    @property
    def max_positions(self) -> int:
        """Tokens that the model can attend to."""
        config = self.model.config.get_text_config()
        return int(getattr(config, "max_position_embeddings", 0) or 2**31)

    @property
    def reach(self) -> int:
        """Most tokens of a sequence: the run's limit, or all that the model can attend to."""
        return min(self.longest or self.max_positions, self.max_positions)

    def weights(self, version: int, directory: Path | None = None) -> PolicyWeights:
        """The live weights; `directory` is where folders of them are written."""
        return PolicyWeights(self, version, directory)

    def state_dict(self) -> MergedTensors:
        """Name to tensor of the whole model, an adapter merged in. Tensors are gathered when they are asked for."""
        return MergedTensors(self.live, self.dtype)

    def tensors(self, *, merged: bool = True, data: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, whole tensor) of a checkpoint of the model, one after the other, tied ones once; an adapter is merged
        in, or left out. Without `data` they are on the meta device, and nothing is gathered."""
        state = self.state_dict() if merged else MergedTensors(self.live, self.dtype, merged=False)
        return checkpoint_tensors(self.model, state if data else {name: state.without_data(name) for name in state})

    def trained_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, whole tensor) of stored buffers and of what an update changes, by the names of `model`; tied ones
        once."""
        seen = set()
        for name, tensor in self.live.state_dict(keep_vars=True).items():
            learns = tensor.requires_grad or not isinstance(tensor, torch.nn.Parameter)
            if learns and tensor.numel() and id(tensor) not in seen:
                seen.add(id(tensor))
                yield name, gathered(tensor.detach(), self.dtype)

    def read(self, source: str) -> None:
        """Read the shards, and stored buffers, from a checkpoint. Raises ConfigError."""
        names = {name: tensor for name, tensor in self.live.state_dict(keep_vars=True).items() if ".lora_" not in name}
        read_checkpoint(self.model, source, {name.replace(".base_layer.", "."): it for name, it in names.items()})

    def whole_copy(self) -> Any:
        """A model of one's own with the weights as they are now: the same object at each call, brought up to date."""
        from toolrl_plugin_torch.sharding.fsdp import allocate, copy_without_weights

        first = self._copy is None
        if first:
            self._copy = copy_without_weights(self.model, self.dtype, trained=False).eval()
            allocate(self._copy, self.device)
        pairs = zip(self._copy.parameters(), self.live.parameters(), strict=True)
        with torch.no_grad():
            for target, source in pairs:
                if first or source.requires_grad:
                    target.copy_(gathered(source.detach(), target.dtype))
        return self._copy

    def update_adapter(self) -> None:
        """Gather the trained adapter into `model`."""
        if self.shards is not None:
            own = self.model.state_dict()
            for name, tensor in self.trained_tensors():
                put(tensor, own[name])

    def save_trained(self, folder: Path, what: str) -> None:
        """Write what training changes, the adapter or the whole model, with tokenizer and processor. All ranks call it,
        and the first one writes; where it can't, all raise its error. `what` names this point of the run."""
        if self.adapter is None:
            self.save_whole(folder, what)
            return
        self.update_adapter()
        adapter = self.adapter

        def write() -> None:
            folder.mkdir(parents=True, exist_ok=True)
            adapter.save_pretrained(folder)
            self._save_words(folder)

        self.ranks.by_first(write, what)

    def save_whole(self, folder: Path, what: str = "the model's folder") -> None:
        """Write model, an adapter merged in, tokenizer and processor as a Hugging Face folder, tensor by tensor. All
        ranks call it, as `save_trained`."""
        tensors, failure = self.tensors(), None

        def write() -> None:
            with self.changes.undone(self.model.config):
                self.model.save_pretrained(folder, state_dict={})  # Config, a custom model's code, and empty weights.
            write_safetensors(folder, list(self.tensors(data=False)), tensors)
            self._save_words(folder)

        try:
            if self.ranks.first:
                write()
        except Exception as error:  # noqa: BLE001 - raised when the others know of it
            failure = error
        for _ in tensors:
            pass  # The other ranks, and all after a failure: each tensor is gathered by all.

        def outcome() -> None:
            if failure is not None:
                raise failure

        self.ranks.by_first(outcome, what)

    def _save_words(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)
        if self.processor is not None:
            self.processor.save_pretrained(folder)


def load_policy(
    config: ModelConfig,
    source: str,
    device: torch.device,
    ranks: Ranks = ONE,
    *,
    cpu_offload: bool = False,
    hollow: bool = False,
    longest: int | None = None,
) -> PolicyModel:
    """Load model and tokenizer from `source`, a folder (or a hub's `owner/name`, where a hub can be
    reached). A folder with an adapter stands for its model with the adapter, which is trained on where
    `config.lora` is given, and merged in for good where it isn't. Distributed ranks shard the model; each reads its
    own part of the weights. A `hollow` policy has none, and no adapter: for a process that needs the rest. `longest`:
    most tokens of a sequence of the run, by which a rotary embedding with two sets of factors gets one.

    Raises ConfigError with the part that failed and why, CheckpointError for an adapter that can't be read or doesn't
    fit.
    """
    if (problem := broken_model(source)) is not None:
        raise ConfigError(problem)
    # Bars for loading and writing weights would break up the live view of a run.
    transformers.utils.logging.disable_progress_bar()
    base = adapter_base(source)
    # Adapters written by others often come without the model's tokenizer.
    words = source if base is None or (Path(source) / "tokenizer_config.json").is_file() else base
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(words, trust_remote_code=config.trust_remote_code)
    except Exception as error:
        raise _load_error("tokenizer", words, error) from error
    data = not (hollow or ranks.distributed)
    try:
        loader, settings = model_settings(config, base or source)
        changes = ConfigChanges.make(settings, longest)
        dtype = pick_dtype(config.dtype, device, stored_dtype(settings))
        model, processor = _load_model(config, base or source, loader, settings, words, tokenizer, dtype, data=data)
    except ConfigError:
        raise
    except Exception as error:
        raise _load_error("model", base or source, error) from error
    policy = PolicyModel(
        model, tokenizer, source, device, dtype, processor,
        compile=config.compile, longest=longest, changes=changes, ranks=ranks,
    )  # fmt: skip
    if hollow:
        return policy
    if base is not None and config.lora is None:
        model = policy.model = _with_adapter(model, source, ranks)
    model._apply(lambda tensor: tensor if tensor.is_meta else tensor.to(device))
    _checkpoint_activations(model, config.gradient_checkpointing, device)
    if config.lora is not None:
        folder = Path(base or source)
        policy.adapter = LoraAdapter.add(model, config.lora, str(folder.absolute() if folder.is_dir() else folder))
        if base is not None:
            policy.adapter.restore(Path(source))
    if ranks.distributed:
        from toolrl_plugin_torch.sharding.fsdp import ShardedModel

        policy.shards = ShardedModel(model, dtype, ranks, trained=True, cpu_offload=cpu_offload)
        policy.read(base or source)
    return policy


def _with_adapter(model: Any, source: str, ranks: Ranks) -> Any:
    """The model with the adapter of a folder merged in."""
    if ranks.distributed:
        raise ConfigError(
            f"model.path: {source!r} holds an adapter, and several processes can't merge it into its model",
            hint="Merge it by `toolrl export`, or set model.lora to train it on.",
        )
    return merge_from(model, Path(source))


def _checkpoint_activations(model: Any, wanted: bool | str, device: torch.device) -> None:
    if wanted is True or (wanted == "auto" and device.type == "cuda" and model.supports_gradient_checkpointing):
        # The first name is the newer one; where transformers has it, the second warns.
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        # A layer draws no random numbers, and an engine beside the trainer may draw from the process's generator.
        enable({"use_reentrant": False, "preserve_rng_state": False})


def _load_model(
    config: ModelConfig,
    source: str,
    loader: Any,
    settings: Any,
    words: str,
    tokenizer: Any,
    dtype: torch.dtype,
    *,
    data: bool,
) -> tuple[Any, Any]:
    """The model, and its processor where it takes images. Without `data` its parameters are on the meta device."""
    options: dict[str, Any] = {"trust_remote_code": config.trust_remote_code}
    _note_dtype(settings, dtype)
    processor = (
        _load_processor(words, tokenizer, options) if loader is transformers.AutoModelForImageTextToText else None
    )
    if config.attention is not None:
        options["attn_implementation"] = config.attention
    if data:
        return loader.from_pretrained(source, dtype=dtype, config=settings, **options), processor
    from toolrl_plugin_torch.sharding.fsdp import without_weights

    with without_weights():
        model = loader.from_config(settings, dtype=dtype, **options).eval()
    for part, kept in model._get_dtype_plan(dtype).items():  # Of a model in bfloat16 what stays in float32.
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if re.search(part.replace("*", ".*"), name):
                tensor.data = tensor.data.to(kept)
    with contextlib.suppress(OSError):  # Without a file the model's config says it.
        model.generation_config = transformers.GenerationConfig.from_pretrained(source)
    return model, processor


def model_settings(config: ModelConfig, source: str) -> tuple[Any, Any]:
    """The class of transformers that loads a model, and the model's config. Raises ConfigError for a quantized one."""
    found = transformers.AutoConfig.from_pretrained(source, trust_remote_code=config.trust_remote_code)
    if getattr(found, "quantization_config", None) is not None:
        raise ConfigError(
            f"model.path: {source!r} holds quantized weights (quantization_config), which can't be trained on",
            hint="Take the model's checkpoint in bfloat16 or float32; model.lora trains on that with less memory.",
        )
    loader = transformers.AutoModelForImageTextToText if _takes_images(found) else transformers.AutoModelForCausalLM
    return loader, found


def stored_dtype(settings: Any) -> torch.dtype | None:
    """The type in which a model's files hold it, as its config says."""
    return getattr(torch, str(settings.dtype).removeprefix("torch."), None)


def _note_dtype(settings: Any, dtype: torch.dtype) -> None:
    """Keep in the config of a bfloat16 model that is trained in float32 what its files held, for `toolrl export`."""
    was = str(vars(settings).pop(SOURCE_DTYPE, settings.dtype)).removeprefix("torch.")
    if was == "bfloat16" and dtype == torch.float32:
        setattr(settings, SOURCE_DTYPE, was)


def _takes_images(settings: Any) -> bool:
    """Whether a config is that of a vision-language model."""
    known = transformers.models.auto.modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return type(settings) in known and getattr(settings, "vision_config", None) is not None


def _load_processor(source: str, tokenizer: Any, options: Mapping[str, Any]) -> Any:
    """The model's processor; where that can't be loaded its image processor, and None where there is none: the model
    takes text then."""
    reasons = []
    for loader in (transformers.AutoProcessor, transformers.AutoImageProcessor):
        try:
            processor = loader.from_pretrained(source, **options)
        except Exception as error:  # noqa: BLE001 - whatever one of many classes raises, ImportError among it
            reasons.append(f"{loader.__name__}: {first_line(error)}")
            continue
        if tokenizer.chat_template is None:
            tokenizer.chat_template = getattr(processor, "chat_template", None)
        return processor if processor is not tokenizer else None
    logger.warning("%s takes text only here, since its processor can't be loaded: %s", source, "; ".join(reasons))
    return None


def _load_error(what: str, source: str, error: Exception) -> ConfigError:
    return ConfigError(f"model.path: the {what} can't be loaded from {source!r}: {first_line(error)}")
