"""The policy's weights as engines take them, whole in one process or gathered from all ranks."""

from __future__ import annotations

import shutil
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from toolrl_plugin_torch.checkpoints.layout import checkpoint_tensors
from toolrl_plugin_torch.probe import Probe, digests, measure, probe_ids

if TYPE_CHECKING:
    from toolrl_plugin_torch.policy import PolicyModel

_HANDING_OVER = "weights that the first rank hands over"


class PolicyWeights:
    """A `WeightSource` over the live policy. `path()` writes a folder once a version, beside the run.

    Where ranks share the weights all of them call each method together; or one hands the weights over while the others
    `follow`: between `lead` and `release` the first rank's calls of the methods that gather are made on all."""

    def __init__(self, policy: PolicyModel, version: int, directory: Path | None = None) -> None:
        self.version = version
        self._policy = policy
        self._directory = directory
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._path: Path | None = None
        self._leads = False

    def module(self, *, data: bool = True) -> Any:
        """See WeightSource."""
        if self._policy.shards is None or not data:
            return self._policy.model
        self._begin(None)
        return self._policy.whole_copy()

    def tensors(self, *, merged: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        """See WeightSource."""
        self._begin("tensors", merged=merged)
        return _to_the_end(self._policy.tensors(merged=merged))

    def digests(self) -> dict[str, int]:
        """See WeightSource."""
        self._begin("digests")
        policy, state = self._policy, self._policy.state_dict()
        merged = checkpoint_tensors(policy.model, {name: state.without_data(name) for name in state.merged})
        changed = {name for name, _ in merged}
        return digests(each for each in policy.tensors(merged=False) if each[0] not in changed)

    def frozen_digests(self) -> dict[str, int]:
        """See WeightSource."""
        if self._policy.shards is not None:
            return {}
        state = self._policy.model.state_dict(keep_vars=True)
        frozen = {name: it for name, it in state.items() if isinstance(it, torch.nn.Parameter) and not it.requires_grad}
        return digests(frozen.items())

    def probe(self) -> Probe:
        """See WeightSource."""
        self._begin("probe")
        policy = self._policy
        known = min(len(policy.tokenizer), policy.model.config.get_text_config().vocab_size)
        ids = probe_ids(policy.tokenizer, known, policy.max_positions - 1)
        if policy.shards is None:
            return measure(policy.model, ids, policy.dtype)
        with torch.no_grad():
            found: Probe = policy.shards(measure, policy.live, ids, policy.dtype)
        return found

    def save_config(self, folder: Path) -> None:
        """See WeightSource."""
        # The run's config, and not that of checkpoints: an engine must take the same factors of rotary embeddings.
        model = self._policy.model  # Its own `save_pretrained` writes nothing on ranks but the first.
        model.config.architectures = [type(model).__name__]
        for part in (model.config, model.generation_config, self._policy.tokenizer, self._policy.processor):
            if part is not None:
                part.save_pretrained(folder)

    def trained_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """See WeightSource."""
        self._begin("trained_tensors")
        return _to_the_end(self._policy.trained_tensors())

    def path(self) -> Path:
        """See WeightSource."""
        if self._path is None:
            self._begin("path")
            ranks = self._policy.ranks
            name = None
            if ranks.first:
                self._folder = temporary_folder(f"weights-{self.version}", self._directory)
                name = self._folder.name
            path = Path(ranks.broadcast(name, "the folder of the weights"))
            try:
                self._policy.save_whole(path)
            except BaseException:  # Half of a model must not be taken for one when this is asked for again.
                self.close()
                raise
            self._path = path
        return self._path

    def lead(self) -> None:
        """See WeightSource."""
        self._leads = self._policy.ranks.distributed

    def release(self) -> None:
        """See WeightSource."""
        if self._leads:
            self._policy.ranks.broadcast(None, _HANDING_OVER)
            self._leads = False

    def follow(self) -> None:
        """See WeightSource."""
        while (call := self._policy.ranks.broadcast(None, _HANDING_OVER)) is not None:
            name, arguments, options = call
            result = getattr(self, name)(*arguments, **options)
            if isinstance(result, Iterator):
                deque(result, maxlen=0)

    def _begin(self, name: str | None, *arguments: Any, **options: Any) -> None:
        """Before a gather, in whichever thread; the ranks that follow call the method of this name."""
        self._policy.ranks.use_device()
        if self._leads and name is not None:
            self._policy.ranks.broadcast((name, arguments, options), _HANDING_OVER)

    def close(self) -> None:
        """Delete the folder, if there is one; else it goes when the process ends."""
        if self._folder is not None:
            self._folder.cleanup()
        self._folder = self._path = None


def _to_the_end(tensors: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The same, which goes on to the end where its caller stops before: the other ranks gather with this one."""
    try:
        for each in tensors:  # noqa: UP028 - `yield from` would close them, too
            yield each
    finally:
        deque(tensors, maxlen=0)


def temporary_folder(what: str, directory: Path | None) -> tempfile.TemporaryDirectory[str]:
    """A new folder with `what` in its name, in `directory` or else in the system's folder for temporary files."""
    return tempfile.TemporaryDirectory(prefix=f"scratch-{what}-", dir=directory)


def delete_abandoned(directory: Path) -> None:
    """Delete what killed processes left. Call it before any process of the run makes its own."""
    for path in directory.glob("scratch-*"):
        shutil.rmtree(path, ignore_errors=True)
