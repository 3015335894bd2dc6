"""Whether a config is one for this plugin's commands."""

from __future__ import annotations

from toolrl.config.model import Config
from toolrl.errors import ConfigError
from toolrl_plugin_torch.options import TrainerConfig


def check_trainer(config: Config, command: str) -> None:
    """Raise ConfigError for a config of another trainer than `torch`."""
    if not isinstance(config.trainer, TrainerConfig):
        raise ConfigError(
            f"trainer.use is {config.trainer.use!r}, and `toolrl {command}` is a command of the trainer torch",
            hint="Set it to torch, for example by --set trainer.use=torch.",
        )
