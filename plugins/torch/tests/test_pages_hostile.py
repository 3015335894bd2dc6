"""Memory that is used again, where others use it at the same time, the system gives none, or the limit is near."""

from __future__ import annotations

import mmap
import sys
import threading
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from toolrl_plugin_torch.fused import huge_pages as pages  # noqa: E402
from toolrl_plugin_torch.fused.huge_pages import Memory, new_zeros  # noqa: E402

LARGE = (3, 1 << 20)


@pytest.mark.skipif(not pages._CAN, reason="this system has no huge pages to ask for")
def test_threads_that_take_at_once_get_memory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(block: mmap.mmap) -> int:
        count = sys.getrefcount(block)
        time.sleep(0.01)  # Another thread may run now.
        return count

    monkeypatch.setattr(pages, "_references", slowly)
    memory = Memory()
    some = [memory.take(LARGE) for _ in range(2)]
    del some  # Both blocks are free, and whoever comes takes the first.
    found: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: found.append(memory.take(LARGE))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(memory._blocks) == 2
    assert len({tensor.data_ptr() for tensor in found}) == 2


def test_where_the_system_maps_no_more_memory_torch_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **keywords: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", full)
    assert Memory().take(LARGE).shape == LARGE
    assert not new_zeros(LARGE, torch.float32, torch.device("cpu")).any()


@pytest.mark.skipif(not pages._CAN, reason="this system has no huge pages to ask for")
def test_what_finds_no_room_takes_none_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_KEPT", 40 << 20)
    memory = Memory()
    place = memory.take(LARGE).data_ptr()
    held = memory.take((6, 1 << 20))
    for rows in (20, 5):  # More than is kept at all, and more than what is free would give.
        memory.take((rows, 1 << 20))
    assert memory.take(LARGE).data_ptr() == place
    assert held.shape == (6, 1 << 20)
