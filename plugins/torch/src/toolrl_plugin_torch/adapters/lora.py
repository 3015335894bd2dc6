"""LoRA through peft: low-rank additions to linear layers, which are trained in the place of the model's own weights.

    y = W x + s · B A x        W stays; A [rank, in] and B [out, rank] are trained; s = alpha / rank (arXiv 2106.09685)

peft puts the additions into the transformers model in place, so the model keeps its class, its config and its names;
trainer, scorer and the embedded engine use it as any other. What needs whole weights (an engine of its own, an export)
is given W + s · B A, computed in float32 and rounded once, a layer at a time.

A copy of the model for the KL term, a critic or an overlapping engine shares all frozen weights with it
(`copy_sharing_frozen`), so it costs the additions alone.
"""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from toolrl.errors import CheckpointError, ConfigError, first_line
from toolrl_plugin_torch.adapters.targets import ALL, select_targets, uncovered
from toolrl_plugin_torch.options import LoraConfig
from toolrl_plugin_torch.sharding.dtensor import gathered

logger = logging.getLogger(__name__)
CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_NAME = "default"
"""The adapter's, as peft knows it."""
_PARTS = (".lora_A.", ".lora_B.")
_MERGE_IT = "Give model.lora the values that it was trained with, or leave model.lora out to take the merged model."
_LIKE_LORA = (True, False, None, "gaussian", "orthogonal", "eva")
"""Beginnings (`init_lora_weights`) that leave the model's own weights alone."""


class LoraAdapter:
    """A LoRA adapter in a model. `model` is the transformers model with the additions in it."""

    def __init__(self, wrapped: Any, base: str) -> None:
        self._wrapped = wrapped
        self.model = wrapped.get_base_model()
        self.base = base
        """The folder, or the hub's name, of the model without the adapter."""

    @classmethod
    def add(cls, model: Any, config: LoraConfig, base: str, *, report: bool = True) -> LoraAdapter:
        """Put a new adapter into a model, in place; it changes nothing yet, as B is 0. Only its weights are trained
        from then on. With `report` a warning names the weights that `all-linear` leaves out. Raises ConfigError."""
        peft = require_peft("model.lora")
        settings = peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=[], task_type="CAUSAL_LM")
        settings.target_modules = select_targets(model, config.target_modules, settings)
        try:
            # In the model's precision: the optimizer keeps float32 masters of what is in lower precision.
            without_data = any(parameter.is_meta for parameter in model.parameters())
            with torch.random.fork_rng(devices=[], enabled=without_data):
                wrapped = peft.get_peft_model(model, settings, adapter_name=_NAME, autocast_adapter_dtype=False)
        except ValueError as error:
            raise ConfigError(
                f"model.lora.target_modules: {first_line(error)}",
                hint="Give all-linear, or names of this model's linear layers.",
            ) from error
        adapter = cls(wrapped, base)
        if without_data:
            adapter._draw()
        if report and str(config.target_modules).lower() == ALL and (left := uncovered(adapter.model, settings)):
            logger.warning("model.lora: these weights get no addition and stay as they are: %s", "; ".join(left))
        return adapter

    def _draw(self) -> None:
        """Draw the additions as peft does for a model with data: without, it leaves them on the meta device."""
        for layer in self.model.modules():
            if hasattr(layer, "lora_A"):
                for parts in (layer.lora_A, layer.lora_B):
                    before = parts[_NAME]
                    parts[_NAME] = torch.nn.Linear(before.in_features, before.out_features, bias=False)
                layer.reset_lora_parameters(_NAME, True)
                for parts in (layer.lora_A, layer.lora_B):
                    parts[_NAME].to(layer.get_base_layer().weight.dtype)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The trained tensors, live, under the names that peft writes."""
        found: dict[str, torch.Tensor] = require_peft("model.lora").get_peft_model_state_dict(
            self._wrapped, adapter_name=_NAME, save_embedding_layers=False
        )
        return found

    def frozen_copy(self, *, whole: bool = False) -> Any:
        """A copy of the model as it is now, which shares the model's own weights. Additions of 0 are left out, unless
        `whole`."""
        if whole or any(bool(tensor.any()) for name, tensor in self.state_dict().items() if "lora_B" in name):
            return copy_sharing_frozen(self.model)
        return copy_sharing_frozen(self._wrapped).unload()

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the adapter as peft does: `PeftModel.from_pretrained` takes it, and so does transformers."""
        from safetensors.torch import save_file

        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        save_file(tensors, Path(folder) / WEIGHTS_FILE, metadata={"format": "pt"})
        settings = copy.copy(self._wrapped.peft_config[_NAME])
        settings.inference_mode = True
        settings.base_model_name_or_path = self.base
        if isinstance(settings.target_modules, set):
            settings.target_modules = sorted(settings.target_modules)
        settings.save_pretrained(str(folder))

    def restore(self, folder: Path, *, hint: str = _MERGE_IT) -> None:
        """Load saved tensors in place. Raises CheckpointError where they are of another adapter, with this `hint`."""
        saved, mine = read_tensors(folder), self.state_dict()
        shapes = [{name: tuple(tensor.shape) for name, tensor in each.items()} for each in (saved, mine)]
        settings = self._wrapped.peft_config[_NAME]
        written = read_config(folder)
        # With these the same tensors add something else than s · B A, or change the model's own weights.
        strange = {name: value for name in ("use_rslora", "alpha_pattern") if (value := written.get(name))}
        if written.get("init_lora_weights", True) not in _LIKE_LORA:
            strange["init_lora_weights"] = written["init_lora_weights"]
        if strange or shapes[0] != shapes[1] or written.get("lora_alpha") != settings.lora_alpha:
            raise CheckpointError(
                f"its adapter (rank {written.get('r')}, alpha {written.get('lora_alpha')}, {strange}) isn't that of "
                f"model.lora (rank {settings.r}, alpha {settings.lora_alpha})",
                where=str(folder),
                hint=hint,
            )
        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(saved[name])


class MergedTensors(Mapping[str, torch.Tensor]):
    """Name to tensor of a model, additions merged in. A merged tensor is computed, and a sharded one is gathered, when
    it is asked for; all ranks ask for it together then. The other tensors are the live ones."""

    def __init__(self, model: Any, dtype: torch.dtype | None = None, *, merged: bool = True) -> None:
        """`dtype` is that of gathered tensors. Without `merged` additions are left out."""
        layers = ((name, layer) for name, layer in model.named_modules() if merged and hasattr(layer, "lora_A"))
        self.merged = {f"{name}.weight": layer for name, layer in layers}
        """By name of a tensor the layer with its addition."""
        self._dtype = dtype
        self.base: dict[str, torch.Tensor] = {
            name.replace(".base_layer.", "."): tensor
            for name, tensor in model.state_dict().items()
            if not any(part in name for part in _PARTS)
        }
        """Without additions."""

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = gathered(self.base[name], self._dtype)
        return tensor if name not in self.merged else _merged(tensor, self.merged[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.base)

    def __len__(self) -> int:
        return len(self.base)

    def without_data(self, name: str) -> torch.Tensor:
        """A tensor on the meta device like the one of this name."""
        tensor = self.base[name]
        sharded = hasattr(tensor, "full_tensor")
        return torch.empty(tensor.shape, dtype=self._dtype if sharded else tensor.dtype, device="meta")


def _merged(weight: torch.Tensor, layer: Any) -> torch.Tensor:
    """W + s · B A, rounded once."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    parts = (gathered(part[_NAME].weight.detach(), weight.dtype) for part in (layer.lora_A, layer.lora_B))
    low, high = (part.to(wide) for part in parts)
    addition = high @ low
    if layer.fan_in_fan_out:  # as GPT-2 keeps its weights
        addition = addition.t()
    return (weight.to(wide) + addition * layer.scaling[_NAME]).to(weight.dtype)


def copy_sharing_frozen(module: Any) -> Any:
    """A deep copy, but for parameters that aren't trained: those are the same tensors in both."""
    return copy.deepcopy(module, {id(p): p for p in module.parameters() if not p.requires_grad})


def adapter_base(source: str | Path) -> str | None:
    """The model that the adapter in a folder was made for; None where the folder holds no adapter, or one that names no
    model. Raises ConfigError."""
    if not (Path(source) / CONFIG_FILE).is_file():
        return None
    return read_config(Path(source)).get("base_model_name_or_path") or None


def merge_from(model: Any, folder: Path) -> Any:
    """Merge the adapter in a folder into a model for good; any kind that peft can merge. Raises ConfigError."""
    peft = require_peft(f"model.path: {str(folder)!r} holds an adapter, which")
    read_tensors(folder)  # without them peft would ask a hub, or read a pickle
    dtypes, own = {name: parameter.dtype for name, parameter in model.named_parameters()}, model.dtype
    try:
        for parameter in model.parameters():  # to be rounded once; in lower precision peft rounds several times
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))
        tied = _untie(model)
        wrapped = peft.PeftModel.from_pretrained(model, str(folder), autocast_adapter_dtype=False)
        # Once more, since only this reports tensors that don't fit.
        fit = wrapped.load_adapter(str(folder), _NAME, autocast_adapter_dtype=False)
        if strange := [*fit.missing_keys, *(name for name in fit.unexpected_keys if ".lora_" in name)]:
            raise ValueError(f"{len(strange)} of its tensors and the layers that it names don't fit: {strange[0]} …")
        merged = wrapped.merge_and_unload()
    except Exception as error:
        text = f"model.path: the adapter can't be merged into its model: {type(error).__name__}: {first_line(error)}"
        raise ConfigError(
            text, where=str(folder), hint=f"See whether {CONFIG_FILE} is what was written with the weights beside it."
        ) from error
    if tied:
        _tie_again(merged)
    for name, parameter in merged.named_parameters():
        # A head that shares its weight has no name among those of the model.
        parameter.data = parameter.data.to(dtypes.get(name, own))
    # peft froze the model's own weights.
    return merged.requires_grad_(True)


def _untie(model: Any) -> bool:
    """Give a head that is tied to the input embeddings a weight of its own; False if none is. An adapter may change one
    of the two: merged into the weight of both it would compute something else than it was trained to."""
    head, words = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or getattr(head, "weight", None) is not words.weight:
        return False
    head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=head.weight.requires_grad)
    return True


def _tie_again(model: Any) -> None:
    """Tie the head of a merged model again if it equals the input embeddings. Its config says whether it is tied: were
    it wrong, one would overwrite the other when the model is loaded again."""
    head, words = model.get_output_embeddings(), model.get_input_embeddings()
    equal = head.weight.equal(words.weight)
    if equal:
        head.weight = words.weight
    else:
        logger.warning("the adapter changes the head or the input embeddings alone: the merged model doesn't tie them")
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = equal


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of the adapter in a folder. Raises CheckpointError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not (folder / WEIGHTS_FILE).is_file():
        raise CheckpointError(
            f"it holds no {WEIGHTS_FILE}",
            where=str(folder),
            hint="adapter_model.bin isn't read, as a pickle may run code; save the adapter anew with peft.",
        )
    try:
        found: dict[str, torch.Tensor] = load_file(folder / WEIGHTS_FILE)
    except SafetensorError as error:
        raise CheckpointError(f"{WEIGHTS_FILE} can't be read: {error}", where=str(folder)) from error
    return found


def read_config(folder: Path) -> dict[str, Any]:
    """adapter_config.json. Raises ConfigError."""
    file = folder / CONFIG_FILE
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it is no mapping")
        return found
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"the adapter's config can't be read: {error}", where=str(file)) from error


def require_peft(what: str) -> Any:
    """The package peft. Raises ConfigError where it isn't installed."""
    try:
        import peft
    except ImportError as error:
        raise ConfigError(f"{what} needs peft, which isn't installed", hint="pip install 'toolrl[lora]'") from error
    # Heads are tied again after a merge.
    warnings.filterwarnings("ignore", message="Input and output embeddings are no longer tied")
    # It reads an attribute that newer versions of transformers have by another name; nothing here can change that.
    warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
    return peft
