"""What waits on the CPU between its uses: nothing of a step changes by it, and each thing moves as often as it is used.

Without a GPU the other device is another place in memory, and what is left behind there becomes NaN: whoever used it by
mistake would be noticed.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from toolrl.errors import RunStoppedError
from toolrl_plugin_torch import offload as module
from toolrl_plugin_torch import optimizer
from toolrl_plugin_torch.fine_tuning.demonstrations import Demonstration
from toolrl_plugin_torch.loop.batches import FixedRows
from toolrl_plugin_torch.loop.saver import Saver
from toolrl_plugin_torch.offload import HostTransfers, Offloaded
from toolrl_plugin_torch.trainer import PolicyTrainer

ALL = ["optimizer", "reference", "critic"]


class OtherPlace(HostTransfers):
    """A device that is the CPU, far from the buffers."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.moves = {"out": 0, "back": 0}
        self.leaving: set[int] = set()
        self.held = self.peak = 0
        """Bytes of what is back."""
        self.lanes: Iterable[Any] = itertools.repeat(None)
        """An entry for each use of one: an error that it ends with, or None."""

    def buffer(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, requires_grad=False)

    def out(self, tensor: torch.Tensor, buffer: torch.Tensor) -> None:
        self.moves["out"] += 1
        self.leaving.add(buffer.data_ptr())
        buffer.copy_(tensor.detach())
        tensor.data.fill_(float("nan"))

    def back(self, buffer: torch.Tensor) -> torch.Tensor:
        assert buffer.data_ptr() not in self.leaving
        self.moves["back"] += 1
        found = buffer.clone()
        self.held += found.nbytes
        self.peak = max(self.peak, self.held)
        weakref.finalize(found, self._freed, found.nbytes)
        return found

    def _freed(self, size: int) -> None:
        self.held -= size

    @contextmanager
    def lane(self, number: int) -> Iterator[None]:
        yield
        if (error := next(iter(self.lanes))) is not None:
            raise error

    def wait(self) -> None:
        self.leaving.clear()

    def release(self) -> None:
        assert not self.leaving


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> OtherPlace:
    place = OtherPlace()
    monkeypatch.setattr(module, "host_transfers", lambda device: place)
    return place


def make_trainer(
    tiny: Any, folder: Path, parts: list[str], *, dtype: str = "float32", device: str = "cpu"
) -> PolicyTrainer:
    policy = tiny.policy(dtype=dtype)
    policy.device = torch.device(device)
    policy.model.to(policy.device)
    settings = {"learning_rate": 1e-2, "weight_decay": 0.1, "schedule": "cosine", "warmup_steps": 2, "offload": parts}
    settings |= {"updates_per_step": 2, "max_grad_norm": 0.5}
    algorithm = {"preset": "ppo", "kl_coef": 0.1, "reference": {"sync_every": 2}}
    return tiny.trainer(folder, policy, algorithm, **settings)  # type: ignore[no-any-return]


def steps(trainer: PolicyTrainer, tiny: Any, seeds: range) -> list[dict[str, float]]:
    rewards = (0.0, 1.0, 1.0, 0.0)
    return [trainer.update([tiny.group(rewards, seed), tiny.group(rewards, 90 + seed)]) for seed in seeds]


def same_weights(one: PolicyTrainer, other: PolicyTrainer) -> bool:
    pairs = zip(one.policy.model.parameters(), other.policy.model.parameters(), strict=True)
    return all(first.equal(second) for first, second in pairs)


def test_tensors_come_and_go() -> None:
    place = OtherPlace()
    large, small = torch.arange(2048.0), torch.arange(3.0)
    held = [large, small]
    waiting = Offloaded(lambda: held, place)
    waiting.leave()
    assert place.moves == {"out": 1, "back": 0}, "what is small stays"
    there = large.data_ptr()
    with waiting, waiting:
        assert large.equal(torch.arange(2048.0))
        assert large.data_ptr() != there
        large.add_(1)
        held.append(torch.ones(2048))
    assert place.moves == {"out": 3, "back": 1}
    assert large.data_ptr() == there, "the copy on the CPU is kept"
    assert large.equal(torch.arange(2048.0) + 1)
    held.remove(large)
    with waiting:
        pass
    with waiting:
        assert large.equal(torch.arange(2048.0) + 1), "whoever left the list is at home"
    assert place.moves["back"] == 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("parts", [ALL, ["optimizer"]], ids=",".join)
def test_a_step_is_the_same_bit_for_bit(
    tiny: Any, tmp_path: Path, dtype: str, parts: list[str], elsewhere: OtherPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make_trainer(tiny, tmp_path, [], dtype=dtype)
    wanted = steps(plain, tiny, range(3))
    assert elsewhere.moves == {"out": 0, "back": 0}
    monkeypatch.setattr(optimizer, "BUCKET", 2**12)
    other = make_trainer(tiny, tmp_path, parts, dtype=dtype)
    found = steps(other, tiny, range(3))
    assert found == wanted
    assert found[-1]["kl"] > 0
    assert same_weights(plain, other)
    if parts == ["optimizer"]:
        state = sum(value.nbytes for value in other.optimizer.tensors().values())
        assert 0 < elsewhere.peak <= 2 * optimizer.BUCKET < state / 8


@pytest.mark.parametrize(("before", "after"), [(ALL, ALL), (ALL, []), ([], ALL)], ids=["both", "first", "then"])
def test_an_offloaded_run_goes_on_bit_for_bit(
    tiny: Any, tmp_path: Path, before: list[str], after: list[str], elsewhere: OtherPlace
) -> None:
    def saver(parts: list[str]) -> Saver:
        trainer = make_trainer(tiny, tmp_path, parts, dtype="bfloat16")
        return Saver(trainer, tmp_path / "checkpoints", 2, FixedRows(2), {})

    first = saver(before)
    steps(first.trainer, tiny, range(2))
    first.save()
    second = saver(after)
    assert second.restore() == 2
    again = [steps(each.trainer, tiny, range(2, 4)) for each in (first, second)]
    assert again[0] == again[1]
    assert same_weights(first.trainer, second.trainer)


@pytest.mark.parametrize("part", ["policy", "critic", "fine-tuning"])
def test_an_error_between_two_buckets_leaves_no_whole_step(
    tiny: Any, tmp_path: Path, elsewhere: OtherPlace, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Such weights are never saved: some are of the step before."""
    monkeypatch.setattr(optimizer, "BUCKET", 2**12)
    update: Callable[[], Any]
    if part == "fine-tuning":
        trainer = tiny.fine_tuner(tmp_path, tiny.policy(), offload=["optimizer"])
        update = partial(trainer.update, [Demonstration((5, 6, 7, 8), (0, 1, 1, 1))])
    else:
        algorithm = {"preset": "ppo", "critic": {"warmup_steps": 1 if part == "critic" else 0}}
        trainer = tiny.trainer(tmp_path, tiny.policy(), algorithm, offload=["optimizer"])
        update = partial(trainer.update, [tiny.group((0.0, 1.0))])
    saver = Saver(trainer, tmp_path / "checkpoints", 2, FixedRows(2), {})
    elsewhere.lanes = iter([None, torch.OutOfMemoryError("CUDA out of memory. GPU 0")])
    with pytest.raises(RunStoppedError, match="memory ran out"):
        update()
    assert elsewhere.moves["out"], "something was written"
    assert (trainer.step, trainer.whole, saver.due(asyncio.CancelledError())) == (0, False, False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_makes_room(tiny: Any, tmp_path: Path) -> None:
    plain = make_trainer(tiny, tmp_path, [], device="cuda", dtype="bfloat16")
    wanted = steps(plain, tiny, range(2))
    before = torch.cuda.memory_allocated()
    other = make_trainer(tiny, tmp_path, ALL, device="cuda", dtype="bfloat16")
    found = steps(other, tiny, range(2))
    assert same_weights(plain, other)
    assert found[-1]["loss"] == pytest.approx(wanted[-1]["loss"], rel=1e-3)
    weights = sum(parameter.nbytes for parameter in other.policy.model.parameters())
    assert torch.cuda.memory_allocated() - before < 2 * weights, "averages, masters, reference and critic are elsewhere"
    assert all(tensor.device.type == "cpu" for tensor in other.optimizer.tensors().values())
