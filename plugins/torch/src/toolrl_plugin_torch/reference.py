"""The reference: the policy that the KL divergence is taken to.

It is the policy as it was at the start of the run. With `algorithm.reference.sync_every` it becomes the trained one
after every so many steps (TR-DPO's hard update, arXiv 2404.09656, section 3; TRL's `sync_ref_model`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from toolrl_plugin_torch.algorithm import ReferenceConfig
from toolrl_plugin_torch.logprob import TokenScorer
from toolrl_plugin_torch.offload import offloaded, own_tensors
from toolrl_plugin_torch.sharding.dtensor import local, put


class Reference:
    """A scorer over the reference, which is on the device inside of `on_device` only where it is offloaded."""

    def __init__(
        self, score: TokenScorer, policy: TokenScorer, settings: ReferenceConfig, *, offload: bool, device: torch.device
    ) -> None:
        self.score = score
        self._every = settings.sync_every
        trained = {name: live for name, live in policy.model.named_parameters() if live.requires_grad}
        kept = dict(score.model.named_parameters()) if settings.sync_every else {}
        self._followed = {name: (kept[name], live) for name, live in trained.items() if kept}
        """By name: a tensor that changes, and the policy's."""
        self.on_device = offloaded(
            offload, lambda: own_tensors(score.model, policy.model), device, constant=not self.follows
        )

    @property
    def follows(self) -> bool:
        """Whether it changes, so that checkpoints keep it."""
        return bool(self._followed)

    def sync(self, step: int) -> None:
        """Become the policy, where that is due after this step."""
        if self._every and step % self._every == 0:
            with self.on_device, torch.no_grad():
                for kept, live in self._followed.values():
                    local(kept).copy_(local(live))

    def tensors(self) -> dict[str, torch.Tensor]:
        """The live tensors that change, by name."""
        return {name: kept.detach() for name, (kept, _) in self._followed.items()}

    def write_back(self) -> None:
        """Nothing: the tensors are the model's own."""

    def state_dict(self) -> dict[str, Any]:
        """As `tensors`."""
        return self.tensors()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a saved state."""
        for name, tensor in self.tensors().items():
            put(state[name], tensor)
