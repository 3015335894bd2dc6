"""The trainer `served`, which trains nothing: evaluation and rollout of a model that a server holds, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolrl.config.model import Config
from toolrl.errors import ConfigError, first_line
from toolrl.protocols import BuildContext
from toolrl_common.hub import check_on_hub


@dataclass
class ServedModel:
    """A `toolrl.protocols.TrainedModel` whose weights are elsewhere."""

    tokenizer: Any
    max_positions: int
    processor: Any = None
    device: str = "cpu"
    dtype: str = "auto"

    def weights(self, version: int, directory: Path | None = None) -> None:
        """None: the server keeps its own."""


class ServedBackend:
    """A `toolrl.protocols.TrainerBackend` that loads a tokenizer."""

    def __init__(self, config: Config, context: BuildContext) -> None:
        """Raises ConfigError for rollout workers, which would need weights to load."""
        if config.cluster.rollout_workers:
            raise ConfigError(
                f"cluster.rollout_workers: {config.cluster.rollout_workers} workers would load the trainer's weights, "
                "and with `trainer: {use: served}` a server holds them",
                hint="Set it to 0: the server batches the requests of one process. Let it have more devices instead.",
            )
        self._trusted = config.model.trust_remote_code

    def prepare(self, device: str | None = None) -> None:
        """Nothing computes here."""

    def load_model(
        self, source: str, *, dtype: str | None = None, ranks: Any = None, hollow: bool = False
    ) -> ServedModel:
        try:
            from transformers import AutoConfig, AutoTokenizer
        except ModuleNotFoundError as error:
            hint = "pip install transformers; torch isn't needed for its tokenizers."
            raise ConfigError("trainer.use: `served` loads a tokenizer by transformers", hint=hint) from error
        if not Path(source).is_dir():
            check_on_hub(source, "model")
        try:
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=self._trusted)
            settings = AutoConfig.from_pretrained(source, trust_remote_code=self._trusted).get_text_config()
        except Exception as error:
            raise ConfigError(
                f"model.path: the tokenizer can't be loaded from {source!r}: {first_line(error)}",
                hint="Give a folder with the config.json and the tokenizer of the model that is served.",
            ) from error
        return ServedModel(tokenizer, int(getattr(settings, "max_position_embeddings", 0) or 2**31))

    @staticmethod
    def clean(directory: Path) -> None:
        """It leaves nothing in a run's folder."""

    @staticmethod
    def _trains_nothing(*arguments: Any, **options: Any) -> Any:
        raise ConfigError(
            "trainer.use: `served` trains nothing; it is for `toolrl eval` and `toolrl rollout`",
            hint="Set it to `torch`: pip install 'toolrl[train]'.",
        )

    train = join = _trains_nothing
