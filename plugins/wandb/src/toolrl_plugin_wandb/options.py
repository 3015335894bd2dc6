"""Options of the observer `wandb`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from toolrl.errors import ConfigError
from toolrl_common.tracking import TrackerOptions


class WandbOptions(TrackerOptions):
    """Options of `wandb`; its own environment variables (`WANDB_BASE_URL`, `WANDB_ENTITY` …) hold, too."""

    project: str = Field(
        "toolrl", min_length=1, max_length=128, pattern=r"^[^/\\#?%:]+$", description="The project; no / \\ # ? % or :."
    )
    entity: str | None = Field(None, min_length=1, description="A team or user; None for the account's default.")
    mode: Literal["online", "offline"] | None = Field(
        None, description="`offline` writes to the run folder alone, for `wandb sync`; None for WANDB_MODE, or online."
    )
    tags: list[str] = Field(default_factory=list, description="Tags of the run.")
    group: str | None = Field(None, description="The group that the run belongs to.")
    finish_seconds: float = Field(
        120, gt=0, description="How long a run's end waits for uploads; `wandb sync` sends what is left."
    )

    def check_files(self) -> None:
        """Raises ConfigError where an online run has no API key, or one that can't be right."""
        import wandb

        # WANDB_MODE, or what `wandb offline` wrote.
        if (self.mode or wandb.setup().settings.mode) not in ("online", "shared"):
            return
        hint = "Set WANDB_API_KEY, run `wandb login`, or take `mode: offline`."
        try:
            found = wandb.login(prompt=False, verify=False)
        except wandb.errors.AuthenticationError as error:
            raise ConfigError(f"wandb rejects the API key: {error}", hint=hint) from error
        if not found:
            raise ConfigError("wandb has no API key", hint=hint)
