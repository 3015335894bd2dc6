"""A GPU that isn't there: tensors that are computed on the CPU and say that they are on `cuda:0`.

Inside of `PretendGpu` a tensor that is made on a CUDA device, or moved to one, is marked, what comes of marked tensors
is marked too, and an operation on tensors of both kinds raises RuntimeError, as a real GPU would. Marks belong to
storages, so views have them too. A tensor that nothing is known of, such as a gradient on its way, goes with either.

So a test on a machine without a GPU sees two kinds of mistakes: a tensor that stayed on the wrong side, and
(`waits`) places where the processor would wait for the device. Kernels, their rounding and their speed it knows
nothing of.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from pretend_flash import flash_backward, flash_forward
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves, tree_map

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")

_MOVES = {"to", "cpu", "cuda", "copy_", "__setitem__", "type_as", "_copy_from", "pin_memory"}
"""What may have tensors of both kinds, or changes kinds."""
_INDEXES = {"__getitem__", "__setitem__", "index_put_", "index_put"}
"""What takes indices of the CPU for a tensor of the GPU."""
_WAITS = {"item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__", "nonzero",
          "unique", "masked_select", "equal", "is_nonzero", "__contains__"}  # fmt: skip
"""What the processor has to know a value, or a size, for."""


class PretendGpu(TorchFunctionMode):
    """For the thread that enters it."""

    def __init__(self) -> None:
        super().__init__()
        self._kernels = ExitStack()
        self._marks: dict[int, tuple[torch.device, Any]] = {}
        """By address of a storage; the storage is kept, so that no other gets its address."""
        self.waits: Counter[str] = Counter()
        """Where the processor would wait: function and line of the code outside of torch that called it."""

    def __enter__(self) -> PretendGpu:
        super().__enter__()
        for name, kernel in (("forward", flash_forward), ("backward", flash_backward)):
            self._kernels.enter_context(
                patch.object(torch.ops.aten, f"_flash_attention_{name}", partial(self._run, kernel))
            )
        # The numbers that this device draws are the CPU's, whose generator keeps its own state.
        for name, function in (("get", lambda *of: torch.zeros(16, dtype=torch.uint8)), ("set", lambda *of: None)):
            self._kernels.enter_context(patch.object(torch.cuda, f"{name}_rng_state", function))
        return self

    def __exit__(self, *error: Any) -> None:
        self._kernels.close()
        super().__exit__(*error)

    def _run(self, kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """An operator that only a GPU has."""
        with torch._C.DisableTorchFunction():
            result = kernel(*args, **kwargs)
        for tensor in _tensors(result):
            self._mark(tensor, GPU)
        return result

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        full = resolve_name(func) or ""
        if name == "__get__":
            return self._attribute(func, full, args)
        if func is torch.device or name in ("__set__", "_parse_to", "_has_compatible_shallow_copy_type", "device"):
            return func(*args, **kwargs)
        tensors = _tensors((args, kwargs))
        before = self._device(tensors, name, full)
        if before == GPU and (name in _WAITS or (name == "to" and _asked(args, kwargs) == CPU)):
            self.waits[f"{name} {_caller()}"] += 1
        asked = _asked(args, kwargs)
        if name == "mm" and "out_dtype" in kwargs:  # CUDA alone has it
            wide = kwargs.pop("out_dtype")
            args = [matrix.to(wide) for matrix in args]
        result = func(*_onto_cpu(args), **_onto_cpu(kwargs))
        asked = {"cpu": CPU, "cuda": GPU}.get(name, asked)
        if asked is not None and name in ("to", "cpu", "cuda") and tensors and asked != (before or CPU):
            with torch._C.DisableTorchFunction():
                result = result.clone() if _address(result) == _address(args[0]) else result
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            return result
        after = asked or before or (None if tensors else CPU)
        if after is not None:
            for tensor in _tensors(result):
                self._mark(tensor, after)
        return result

    def _attribute(self, func: Any, full: str, args: Sequence[Any]) -> Any:
        result = func(*args)
        if full.endswith("Tensor.device.__get__"):
            return self._mark_of(args[0]) or CPU
        mark = self._mark_of(args[0])
        if full.endswith(("Tensor.is_cuda.__get__", "Tensor.is_cpu.__get__")):
            return (mark == GPU) == ("is_cuda" in full)
        if isinstance(result, torch.Tensor) and mark is not None:
            self._mark(result, mark)
        return result

    def _mark_of(self, tensor: torch.Tensor) -> torch.device | None:
        with torch._C.DisableTorchFunction():
            found = self._marks.get(_address(tensor))
        return found[0] if found else None

    def _mark(self, tensor: torch.Tensor, device: torch.device) -> None:
        with torch._C.DisableTorchFunction():
            if tensor.device.type == "cpu" and not tensor.is_sparse:
                self._marks[_address(tensor)] = (device, tensor.untyped_storage())

    def _device(self, tensors: Sequence[torch.Tensor], name: str, full: str) -> torch.device | None:
        """The one device of the tensors. Raises RuntimeError where there are two."""
        marks = [self._mark_of(tensor) for tensor in tensors]
        if not tensors or name in _MOVES:
            return marks[0] if marks else None
        if name in _INDEXES and marks[0] == GPU:
            return GPU
        sizes = [tensor.dim() for tensor in tensors]
        known = {mark for mark, size in zip(marks, sizes, strict=True) if mark is not None and size}
        if len(known) > 1:
            raise RuntimeError(f"{full or name}: tensors on cuda:0 and cpu meet, from {_caller()}")
        return next(iter(known), next((mark for mark in marks if mark is not None), None))


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.numel() == 0 else tensor.untyped_storage().data_ptr()


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and value.split(":")[0] in ("cuda", "cpu"))


def _asked(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device | None:
    """The device that a call asks for."""
    for value in [*args, kwargs.get("device")]:
        if value is not None and _is_device(value):
            return GPU if torch.device(value).type == "cuda" else CPU
    return None


def _onto_cpu(value: Any) -> Any:
    return tree_map(lambda leaf: CPU if _is_device(leaf) else leaf, value)


def _caller() -> str:
    """The line outside of torch that a call came from."""
    frame: Any = sys._getframe(1)
    while frame is not None and ("/torch/" in frame.f_code.co_filename or frame.f_code.co_filename == __file__):
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}" if frame is not None else "?"
