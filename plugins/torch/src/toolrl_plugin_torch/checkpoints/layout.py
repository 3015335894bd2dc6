"""A checkpoint's names and shapes for a model's tensors, read and written one conversion at a time.

transformers renames, merges and splits tensors when it reads a checkpoint (the experts of a layer become one tensor,
say), and reverts that when it writes one. Here the same conversions run one after the other, so that no more than the
tensors of one are held. A tensor that is only renamed is read slice by slice: each rank reads its own part.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import _TYPES
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, WeightConverter, WeightRenaming, dot_natural_key

from toolrl.errors import ConfigError
from toolrl_plugin_torch.sharding.dtensor import local_slice, put

_MOST = 50 * 10**9
_DTYPES = {dtype: name for name, dtype in _TYPES.items()}
_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"


def checkpoint_tensors(model: Any, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """A model's tensors under their names in a checkpoint, tied ones once. Each is taken from `tensors` when it is
    reached. The order is the same in all processes."""
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    own = {name: id(tensor) for name, tensor in model.state_dict(keep_vars=True).items()}
    names = [name for name in tensors if name not in tied or own.get(name) != own.get(tied[name])]
    makers = {name: partial(tensors.__getitem__, name) for name in names}
    found = getattr(model, "_weight_conversions", None)
    if found is None:  # The model wasn't read from a checkpoint.
        made = get_model_conversion_mapping(model, add_legacy=False)
        found = [each for each in made if not isinstance(each, PrefixChange)]
    transforms = [each.reverse_transform() for each in reversed(found)]
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]

    def place(name: str) -> tuple[str, Any, str | None]:
        target, converter, pattern = _converted(name, transforms)
        return (_renamed(name, renamings) if converter is None else target), converter, pattern

    for target, transform in _conversions({name: place(name) for name in names}, makers):
        for name, tensor in transform.convert(target, model=model, config=model.config).items():
            whole = tensor[0] if isinstance(tensor, list) else tensor
            yield (_renamed(name, renamings) if isinstance(transform, WeightConverter) else name), whole


def read_checkpoint(model: Any, source: str, targets: Mapping[str, torch.Tensor]) -> None:
    """Read the tensors of a checkpoint, a folder or a hub's name, into `targets`: tensors by the model's names, which
    may be sharded. Raises ConfigError where some aren't in it, or aren't stored as they are needed."""
    conversions = get_model_conversion_mapping(model)
    renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
    files = checkpoint_files(source)
    readers = {name: file for file in files for name in file.keys()}  # noqa: SIM118 - it is no mapping

    def place(name: str) -> tuple[str, Any, str | None]:
        target, converter, pattern = _converted(_renamed(name, renamings), conversions)
        prefix = f"{model.base_model_prefix}."
        candidates = (target, target.removeprefix(prefix), f"{prefix}{target}")
        return next((each for each in candidates if each in targets), target), converter, pattern

    places = {}
    for name in sorted(readers, key=dot_natural_key):
        target, converter, pattern = place(name)
        if target in targets:
            places[name] = target, converter, pattern
        elif name in targets:
            places[name] = name, None, None
    filled = set()
    whole = {name: lambda name=name: readers[name].get_tensor(name) for name in places}
    for target, transform in _conversions(places, whole):
        if isinstance(transform, WeightConverter):
            made = transform.convert(target, model=model, config=model.config)
            values = {name: value[0] if isinstance(value, list) else value for name, value in made.items()}
        else:
            name = next(iter(transform.collected_tensors))
            values = {target: readers[name].get_slice(name)}
        for name, value in values.items():
            if name in targets:
                filled.add(id(targets[name]))  # Tied tensors have several names, and files hold one of them.
                _fill(targets[name], value, name, source)
    model._weight_conversions = [each for each in conversions if each.was_used()]
    parameters = (name for name, target in targets.items() if isinstance(target, torch.nn.Parameter))
    lacking = [name for name in parameters if id(targets[name]) not in filled]
    if lacking:
        raise ConfigError(
            f"{source!r} lacks {len(lacking)} of the model's tensors, {lacking[0]!r} among them",
            where="model.path",
            hint="Every tensor of the model has to be in a checkpoint that ranks share, or that a run resumes from.",
        )


def checkpoint_files(source: str) -> list[Any]:
    """The open safetensors files of a checkpoint. Raises ConfigError where there are none."""
    folder = Path(source)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(source, allow_patterns=["model*.safetensors", _INDEX]))
    names: Iterable[str] = [_FILE]
    if not (folder / _FILE).is_file() and (folder / _INDEX).is_file():
        names = sorted(set(json.loads((folder / _INDEX).read_bytes())["weight_map"].values()))
    elif not (folder / _FILE).is_file():
        raise ConfigError(
            f"{source!r} holds no {_FILE}, and several processes read safetensors only",
            where="model.path",
            hint="Load the model with transformers and save it anew.",
        )
    # Read, not mapped: pages of a mapped file would count as this process's memory.
    return [safe_open(folder / name, framework="pt", backend="pread") for name in names]


def write_safetensors(
    folder: Path, shapes: Sequence[tuple[str, torch.Tensor]], tensors: Iterator[tuple[str, torch.Tensor]]
) -> None:
    """Write tensors as safetensors files of at most 50 GB, each when it comes. `shapes` has tensors without data of the
    same names, types and shapes, in the same order. Raises OSError."""
    files: list[list[tuple[str, torch.Tensor]]] = [[]]
    size = 0
    for name, tensor in shapes:
        if files[-1] and size + tensor.nbytes > _MOST:
            files.append([])
            size = 0
        files[-1].append((name, tensor))
        size += tensor.nbytes
    names = (
        [_FILE]
        if len(files) == 1
        else [f"model-{n:05}-of-{len(files):05}.safetensors" for n in range(1, len(files) + 1)]
    )
    for file, inside in zip(names, files, strict=True):
        _write_file(folder / file, inside, tensors)
    if len(files) > 1:
        places = {name: file for file, inside in zip(names, files, strict=True) for name, _ in inside}
        total = sum(tensor.nbytes for _, tensor in shapes)
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / _INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _write_file(
    path: Path, inside: Sequence[tuple[str, torch.Tensor]], tensors: Iterator[tuple[str, torch.Tensor]]
) -> None:
    """The format: https://huggingface.co/docs/safetensors, a header in JSON behind its length, then the data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in inside:
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for (name, like), (found, tensor) in zip(inside, tensors, strict=False):
            assert (name, like.dtype, like.shape) == (found, tensor.dtype, tensor.shape), "one order everywhere"
            words = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
            file.write(words.numpy().data)


def _fill(target: torch.Tensor, value: Any, name: str, source: str) -> None:
    whole = isinstance(value, torch.Tensor)
    shape = tuple(value.shape if whole else value.get_shape())
    if shape != tuple(target.shape):
        raise ConfigError(
            f"{name!r} has the shape {shape} in {source!r}, and {tuple(target.shape)} in the model",
            where="model.path",
            hint="See whether config.json is that of these weights.",
        )
    if whole:
        put(value, target)
    else:
        part, slices = local_slice(target)
        with torch.no_grad():
            part.copy_(value[slices] if slices else value[...])


def _renamed(name: str, renamings: Sequence[Any]) -> str:
    for each in renamings:
        name, _ = each.rename_source_key(name)
    return name


def _converted(name: str, transforms: Sequence[Any]) -> tuple[str, Any, str | None]:
    """The first name that a converter makes of a name, the converter and its pattern; the name where none does."""
    for each in transforms:
        if isinstance(each, WeightConverter):
            target, pattern = each.rename_source_key(name)
            if pattern is not None:
                return target, each, pattern
    return name, None, None


def _conversions(
    places: Mapping[str, tuple[str, Any, str | None]], tensors: Mapping[str, Callable[[], torch.Tensor]]
) -> Iterator[tuple[str, Any]]:
    """By target the transform that makes it, with the tensors that it is made of."""
    found: dict[str, Any] = {}
    for name in sorted(places, key=dot_natural_key):
        target, converter, pattern = places[name]
        if target not in found:
            found[target] = WeightRenaming(name, target) if converter is None else copy.deepcopy(converter)
        found[target].add_tensor(target, name, pattern or name, tensors[name])
    while found:
        target = next(iter(found))
        yield target, found.pop(target)
