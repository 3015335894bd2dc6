"""Memory of large tensors: used again only where nothing refers to it any more."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from toolrl_plugin_torch.fused import huge_pages as pages  # noqa: E402
from toolrl_plugin_torch.fused.huge_pages import Memory, new_zeros  # noqa: E402

LARGE = (3, 1 << 20)
CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", [(2, 3), LARGE, (0, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_new_zeros(shape: tuple[int, ...], dtype: Any) -> None:
    found = new_zeros(shape, dtype, CPU)
    assert (found.shape, found.dtype, found.is_contiguous()) == (shape, dtype, True)
    assert not found.any()
    found += 1
    assert bool((found == 1).all())


def test_memory_is_used_again_once_nothing_refers_to_it() -> None:
    memory = Memory()
    first = memory.take(LARGE)
    if not pages._CAN:
        pytest.skip("this system has no huge pages to ask for")
    place = first.data_ptr()
    part = first[1:, 5:].unflatten(1, (-1, 1))
    del first
    assert memory.take(LARGE).data_ptr() != place  # A part still has it.
    del part
    assert memory.take(LARGE).data_ptr() == place


def test_what_a_graph_has_saved_is_not_used_again() -> None:
    memory = Memory()
    weight = torch.ones(LARGE[1], requires_grad=True)
    saved = memory.take(LARGE).fill_(2.0)
    loss = (weight * saved).sum()
    del saved
    for _ in range(3):
        memory.take(LARGE).fill_(7.0)
    loss.backward()
    assert weight.grad is not None
    assert bool((weight.grad == 6.0).all())


def test_other_sizes_find_room_too_and_no_more_than_the_limit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_KEPT", 40 << 20)
    memory = Memory()
    for rows in (1, 3, 2, 6, 1, 9, 30, 2):
        held = [memory.take((rows, 1 << 20)) for _ in range(3)]
        assert all(tensor.shape == (rows, 1 << 20) for tensor in held)
        assert len({tensor.data_ptr() for tensor in held}) == 3
        assert sum(map(len, memory._blocks)) <= 40 << 20
        del held


def test_small_ones_are_ordinary() -> None:
    memory = Memory()
    assert memory.take((4, 4)).shape == (4, 4)
    assert memory._blocks == []


def test_copies_begin_empty() -> None:
    memory = Memory()
    held = memory.take(LARGE)
    held.fill_(1.0)
    for other in (copy.deepcopy(memory), pickle.loads(pickle.dumps(memory))):
        other.take(LARGE).fill_(2.0)
    assert bool((held == 1).all())
