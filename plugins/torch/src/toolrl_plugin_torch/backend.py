"""The trainer `torch`: loads models and makes their trainers."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toolrl.assembly import Assembly
from toolrl.config.model import Config
from toolrl.loop.ranks import ONE, Ranks
from toolrl.protocols import BuildContext
from toolrl_plugin_torch.device import choose_kernels, pick_device
from toolrl_plugin_torch.policy import PolicyModel, load_policy
from toolrl_plugin_torch.sharding.sequence_parallel import check_sequence_parallel
from toolrl_plugin_torch.weights import delete_abandoned

logger = logging.getLogger(__name__)


class TorchTrainers:
    """A `toolrl.protocols.TrainerBackend`."""

    def __init__(self, config: Config, context: BuildContext) -> None:
        self._config = config
        self._sections: Any = config
        self._device = torch.device("cpu")

    def prepare(self, device: str | None = None) -> None:
        config = self._config
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        random.seed(config.seed)
        np.random.seed(config.seed % 2**32)  # numpy takes 32 bits
        torch.manual_seed(config.seed)
        self._device = pick_device(device or config.device)
        choose_kernels(self._device, deterministic=config.deterministic)

    def load_model(
        self, source: str, *, dtype: str | None = None, ranks: Ranks = ONE, hollow: bool = False
    ) -> PolicyModel:
        settings = self._sections.model
        if dtype is not None:
            settings = settings.model_copy(update={"dtype": dtype})
        cpu_offload = self._config.cluster.cpu_offload
        longest = self._config.rollout.max_episode_tokens or 2**31  # More than any model attends to.
        return load_policy(
            settings, source, self._device, ranks, cpu_offload=cpu_offload, hollow=hollow, longest=longest
        )

    def check_memory(self, source: str, engine: Any, ranks: int) -> None:
        check_sequence_parallel(self._config, ranks)
        if self._device.type == "cuda":
            from toolrl_plugin_torch.plan.report import refuse

            if (remark := refuse(self._config, source, engine, self._device, ranks)) is not None:
                logger.warning("%s", remark)

    async def train(self, assembly: Assembly) -> None:
        from toolrl_plugin_torch.loop.job import train

        await train(assembly)

    @staticmethod
    def clean(directory: Path) -> None:
        delete_abandoned(directory)

    @staticmethod
    def join(device: str, timeout: float, problem: Exception | None = None) -> Ranks:
        from toolrl_plugin_torch.sharding.process_group import join

        return join(device, timeout, problem)
