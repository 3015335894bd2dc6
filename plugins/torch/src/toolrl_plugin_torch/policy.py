"""The policy: the model that is trained, its tokenizer, and its weights as engines take them."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import revert_weight_conversion

from toolrl.errors import ConfigError, first_line
from toolrl_plugin_torch.adapters.lora import (
    LoraAdapter,
    MergedTensors,
    adapter_base,
    check_base,
    fingerprints,
    merge_from,
)
from toolrl_plugin_torch.device import pick_dtype
from toolrl_plugin_torch.model_path import broken_model
from toolrl_plugin_torch.options import ModelConfig
from toolrl_plugin_torch.probe import digests
from toolrl_plugin_torch.temporary_models import temporary_folder

logger = logging.getLogger(__name__)
SOURCE_DTYPE = "toolrl_source_dtype"
"""Key in config.json of checkpoints: the precision of the model that the run began with, where it is a lower one."""
_LAYER = re.compile(r".*?\.\d+\.")


@dataclass
class PolicyModel:
    """A causal language model with its tokenizer; a vision-language model also with its processor."""

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

    @property
    def trained(self) -> Any:
        """What training changes, with `state_dict` and `save_pretrained`: the adapter, or the whole model."""
        return self.model if self.adapter is None else self.adapter

    @property
    def max_positions(self) -> int:
        """Tokens that the model can attend to."""
        config = self.model.config.get_text_config()
        return int(getattr(config, "max_position_embeddings", 0) or 2**31)

    def weights(self, version: int, directory: Path | None = None) -> PolicyWeights:
        """The live weights; `directory` is where folders of them are written."""
        return PolicyWeights(self, version, directory)

    def state_dict(self) -> Mapping[str, Any]:
        """Name to tensor of the whole model, an adapter merged in."""
        return self.model.state_dict() if self.adapter is None else self.adapter.merged()

    def tensors(self, *, merged: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        """See WeightSource."""
        return checkpoint_tensors(self.model, self.state_dict() if merged else MergedTensors(self.model).base)

    def save_whole(self, folder: Path) -> None:
        """Write model, an adapter merged in, tokenizer and processor as a Hugging Face folder."""
        state = None if self.adapter is None else dict(self.adapter.merged())
        self.model.save_pretrained(folder, state_dict=state)
        self.tokenizer.save_pretrained(folder)
        if self.processor is not None:
            self.processor.save_pretrained(folder)


class PolicyWeights:
    """A `WeightSource` over the live policy. `path()` writes a folder once a version, beside the run."""

    def __init__(self, policy: PolicyModel, version: int, directory: Path | None = None) -> None:
        self.version = version
        self._policy = policy
        self._directory = directory
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def module(self) -> Any:
        return self._policy.model

    def tensors(self, *, merged: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        return self._policy.tensors(merged=merged)

    def digests(self) -> dict[str, int]:
        own = {name: it for name, it in self._policy.model.state_dict().items() if not hasattr(it, "full_tensor")}
        return digests(checkpoint_tensors(self._policy.model, own))

    def save_config(self, folder: Path) -> None:
        model = self._policy.model  # Its own `save_pretrained` writes nothing on ranks but the first.
        model.config.architectures = [type(model).__name__.removeprefix("FSDP")]
        for part in (model.config, model.generation_config, self._policy.tokenizer, self._policy.processor):
            if part is not None:
                part.save_pretrained(folder)

    def path(self) -> Path:
        if self._folder is None:
            folder = temporary_folder(f"weights-{self.version}", self._directory)
            try:
                self._policy.save_whole(Path(folder.name))
            except BaseException:  # Half of a model must not be taken for one when this is asked for again.
                folder.cleanup()
                raise
            self._folder = folder
        return Path(self._folder.name)

    def close(self) -> None:
        """Delete the folder, if there is one; else it goes when the process ends."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def checkpoint_tensors(model: Any, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """A model's tensors under their names in a checkpoint, tied ones once. Each is taken from `tensors` when it is
    reached; where transformers converts a checkpoint when it loads it, a layer's are taken together."""
    names = [name for name in tensors if name not in getattr(model, "all_tied_weights_keys", {})]
    if not get_model_conversion_mapping(model, add_legacy=False):
        yield from ((name, tensors[name].detach()) for name in names)
        return
    for _, layer in groupby(names, lambda name: (_LAYER.match(name) or [name])[0]):
        yield from revert_weight_conversion(model, {name: tensors[name].detach() for name in layer}).items()


def load_policy(config: ModelConfig, source: str, device: torch.device) -> PolicyModel:
    """Load model and tokenizer from `source`, a folder (or a hub's `owner/name`, where a hub can be
    reached). A folder with an adapter stands for its model with the adapter, which is trained on where
    `config.lora` is given, and merged in for good where it isn't.

    Raises ConfigError with the part that failed and why, CheckpointError for an adapter that can't be read or doesn't
    fit.
    """
    dtype = pick_dtype(config.dtype, device)
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
    try:
        model, processor = _load_model(config, base or source, words, tokenizer, dtype)
    except Exception as error:
        raise _load_error("model", base or source, error, config.attention) from error
    if base is not None and config.lora is None:
        check_base(Path(source), base, fingerprints(Path(base)))
        model = merge_from(model, Path(source))
    model.to(device)
    wanted = config.gradient_checkpointing
    if wanted is True or (wanted == "auto" and device.type == "cuda" and model.supports_gradient_checkpointing):
        # The first name is the newer one; where transformers has it, the second warns.
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        # A layer draws no random numbers, and an engine beside the trainer may draw from the process's generator.
        enable({"use_reentrant": False, "preserve_rng_state": False})
    policy = PolicyModel(model, tokenizer, source, device, dtype, processor, compile=config.compile)
    if config.lora is not None:
        folder = Path(base or source)
        policy.adapter = LoraAdapter.add(model, config.lora, str(folder.absolute() if folder.is_dir() else folder))
        if base is not None:
            policy.adapter.restore(Path(source))
    return policy


def _load_model(config: ModelConfig, source: str, words: str, tokenizer: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    """The model, and its processor where it takes images."""
    options: dict[str, Any] = {"trust_remote_code": config.trust_remote_code}
    loader, settings = model_settings(config, source)
    _note_dtype(settings, dtype)
    processor = (
        _load_processor(words, tokenizer, options) if loader is transformers.AutoModelForImageTextToText else None
    )
    if config.attention is not None:
        options["attn_implementation"] = config.attention
    return loader.from_pretrained(source, dtype=dtype, config=settings, **options), processor


def model_settings(config: ModelConfig, source: str) -> tuple[Any, Any]:
    """The class of transformers that loads a model, and the model's config."""
    found = transformers.AutoConfig.from_pretrained(source, trust_remote_code=config.trust_remote_code)
    loader = transformers.AutoModelForImageTextToText if _takes_images(found) else transformers.AutoModelForCausalLM
    return loader, _without_dropout(found)


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


def _without_dropout(config: Any) -> Any:
    """Dropout would make the trainer's log-probabilities differ from those that episodes were sampled with."""
    parts = (config, config.get_text_config(), getattr(config, "vision_config", None))
    for part in {id(part): part for part in parts if part is not None}.values():
        for name, value in part.to_dict().items():
            if ("dropout" in name or name.endswith("pdrop")) and isinstance(value, float):
                setattr(part, name, 0.0)
    return config


def _load_error(what: str, source: str, error: Exception, attention: str | None = None) -> ConfigError:
    if attention is not None and any(word in str(error).lower() for word in ("attn", "attention")):
        return ConfigError(
            f"model.attention: the model can't be loaded with {attention!r}: {first_line(error)}",
            hint="Leave it out for transformers' default, or install what it needs.",
        )
    return ConfigError(f"model.path: the {what} can't be loaded from {source!r}: {first_line(error)}")
