"""The layers that a LoRA adapter is added to: linear ones that compute W x + b and nothing else.

Many models with experts hold these in one tensor of three dimensions, which is no linear layer, and have a router that
gives a choice besides scores. `all-linear` leaves such parts out, and `uncovered` names them with their share of the
weights.

peft reads the names that experts had as layers of their own (`gate_proj`, `w1`) as the stacked tensors, for a model
that has these, and so it does when it loads an adapter. An adapter of a dense layer under such a name could be written
and never loaded again, so it isn't made.
"""

from __future__ import annotations

import copy
import functools
import re
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from toolrl.errors import ConfigError

ALL = "all-linear"
_FIELD = "model.lora.target_modules"
_ONLY = "additions are made to linear layers only"
_UNUSED = "the model may read its weight directly, without an addition"
_EXPERTS = "to peft this name means the experts, whose stacked weights get no addition"


def select_targets(model: Any, targets: str | list[str], settings: Any) -> set[str]:
    """The `target_modules` for peft: paths of layers for `all-linear` and for a regular expression, else the names as
    they are given. `settings` is the LoraConfig that peft will take.

    Raises ConfigError for an entry that names no linear layer, or one that can't be merged exactly or loaded again."""
    if isinstance(targets, str) and targets.lower() == ALL:
        layers = _linear_layers(model)
        head, names = model.get_output_embeddings(), {_last_name(path) for path in layers}
        names = {name for name in names if not _refused(model, settings, name)}
        found = {path for path, layer in layers.items() if layer is not head and _last_name(path) in names}
        if not found:
            raise ConfigError(f"{_FIELD}: {type(model).__name__} has no linear layers that peft can add to")
        return found
    matches = _by_expression(model, targets) if isinstance(targets, str) else _by_name(model, settings, targets)
    for path, module in matches.items():
        _check(model, settings, path, module)
    return set(matches if isinstance(targets, str) else targets)


def uncovered(model: Any, settings: Any) -> list[str]:
    """The parts of a model with an adapter that hold matrices without an addition, with their share of the model's
    weights: `Qwen3MoeExperts (experts), 93.1 %`. Embeddings, the head and convolutions aren't counted as such."""
    passed_over = (torch.nn.Embedding, torch.nn.modules.conv._ConvNd)
    head = model.get_output_embeddings()
    total = sum(p.numel() for name, p in model.named_parameters() if ".lora_" not in name)
    sizes: dict[tuple[type, str], int] = {}
    for path, module in model.named_modules():
        added = hasattr(module, "lora_A") or ".base_layer" in path or ".lora_" in path
        if added or module is head or isinstance(module, passed_over):
            continue
        if size := sum(p.numel() for p in module.parameters(recurse=False) if p.ndim > 1):
            key = type(module), _last_name(path)
            sizes[key] = sizes.get(key, 0) + size
    found = []
    for (kind, name), size in sorted(sizes.items(), key=lambda item: -item[1]):
        reason = _refused(model, settings, name) if _is_linear(kind) else None
        share = f"{100 * size / total:.1f}" if size >= total / 1000 else "< 0.1"
        found.append(f"{kind.__name__} ({name}), {share} %" + (f" ({reason})" if reason else ""))
    return found


def _last_name(path: str) -> str:
    """The last part of a layer's path."""
    return path.rpartition(".")[2]


def _linear_layers(model: Any) -> dict[str, Any]:
    return {path: module for path, module in model.named_modules() if _is_linear(type(module))}


@functools.cache
def _is_linear(kind: type) -> bool:
    """Whether modules of a class compute W x + b and nothing else. A subclass of Linear is tried: routers are among
    them, which give scores and choices."""
    if kind in (torch.nn.Linear, Conv1D):
        return True
    if not issubclass(kind, torch.nn.Linear) or kind.__init__ is not torch.nn.Linear.__init__:
        return False
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        layer, x_BI = kind(3, 2), torch.arange(6.0).reshape(2, 3)
        try:
            found = layer(x_BI)
        except Exception:  # noqa: BLE001 - whatever it wants, it isn't a plain layer
            return False
        wanted = torch.nn.functional.linear(x_BI, layer.weight, layer.bias)
        return isinstance(found, torch.Tensor) and found.shape == wanted.shape and torch.allclose(found, wanted)


def _by_name(model: Any, settings: Any, names: list[str]) -> dict[str, Any]:
    """All modules that a list names, by path: a path, or its end."""
    matches, modules = {}, dict(model.named_modules())
    for name in names:
        found = {path: module for path, module in modules.items() if path == name or path.endswith(f".{name}")}
        if not found:
            reason = _refused(model, settings, _last_name(name))
            if any(path.endswith(f".{name}") for path, _ in model.named_parameters()):
                reason = f"it is a tensor of another layer, and {_ONLY}"
            raise ConfigError(
                f"{_FIELD}: {name!r} names no layer of {type(model).__name__}" + (f": {reason}" if reason else ""),
                hint=_known(model),
            )
        matches.update(found)
    return matches


def _by_expression(model: Any, expression: str) -> dict[str, Any]:
    """All modules whose whole path a regular expression matches, but those that only hold other modules."""
    try:
        pattern = re.compile(expression)
    except re.error as error:
        raise ConfigError(f"{_FIELD}: {expression!r} is no regular expression: {error}") from error
    found = {path: module for path, module in model.named_modules() if path and pattern.fullmatch(path)}
    found = {path: module for path, module in found.items() if next(module.parameters(recurse=False), None) is not None}
    if not found:
        hint = f"For all layers of a name give a list: [{expression}]." if expression.isidentifier() else _known(model)
        raise ConfigError(f"{_FIELD}: the regular expression {expression!r} matches no layer's whole path", hint=hint)
    return found


def _check(model: Any, settings: Any, path: str, module: Any) -> None:
    """Raise ConfigError for a module that gets no addition."""
    if not _is_linear(type(module)):
        raise ConfigError(f"{_FIELD}: {path!r} is of class {type(module).__name__}, and {_ONLY}", hint=_known(model))
    tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    if module is model.get_output_embeddings() and tied:
        raise ConfigError(
            f"{_FIELD}: {path!r} shares its weight with the input embeddings, so no addition can be merged into it",
            hint="Leave the head out; all-linear does.",
        )
    if reason := _refused(model, settings, _last_name(path)):
        raise ConfigError(f"{_FIELD}: {path!r} can't get an addition: {reason}", hint="Leave it out; all-linear does.")


def _known(model: Any) -> str:
    """A hint: what can be named."""
    names = sorted({_last_name(path) for path in _linear_layers(model)})
    return f"Give all-linear, or some of this model's linear layers: {', '.join(names)}."


def _refused(model: Any, settings: Any, name: str) -> str | None:
    """Why no layer of this name in this model gets an addition that is computed and can be loaded again; else None."""
    if name == "dt_proj":  # of Mamba layers
        return _UNUSED
    tried = copy.copy(settings)
    tried.target_modules = {name}
    try:
        from peft.tuners.tuners_utils import _check_lora_target_modules_mamba
        from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
    except ImportError:  # a peft that takes names as they are
        return None
    try:
        _check_lora_target_modules_mamba(tried, model, name)
    except ValueError:
        return _UNUSED
    try:
        convert_peft_config_for_transformers(tried, model, None)
    except ValueError:  # one of several names that are one tensor
        return _EXPERTS
    return None if name in tried.target_modules else _EXPERTS
