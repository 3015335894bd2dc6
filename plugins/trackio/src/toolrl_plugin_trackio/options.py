"""Options of the observer `trackio`."""

from __future__ import annotations

import os
from urllib.parse import parse_qs, urlsplit

from pydantic import Field

from toolrl.errors import ConfigError
from toolrl_common.tracking import TrackerOptions


class TrackioOptions(TrackerOptions):
    """Options of `trackio`. Without a Space or a server, runs are kept in `TRACKIO_DIR`, by default in the Hugging Face
    cache."""

    project: str = Field("toolrl", pattern=r"^[\w-]+$", description="The project: letters, digits, _ and -.")
    space_id: str | None = Field(
        None, pattern=r"^[\w.-]+(/[\w.-]+)?$", description="A Hugging Face Space, such as NAME/SPACE; TRACKIO_SPACE_ID."
    )
    server_url: str | None = Field(
        None, pattern=r"^https?://", description="A Trackio server, with its `write_token`; TRACKIO_SERVER_URL."
    )
    group: str | None = Field(None, description="The group that the run belongs to.")

    def check_files(self) -> None:
        """Raises ConfigError for a Space without a Hugging Face token, and for a server without a write token."""
        space = self.space_id or os.environ.get("TRACKIO_SPACE_ID")
        server = self.server_url or os.environ.get("TRACKIO_SERVER_URL")
        if space:
            from huggingface_hub import get_token

            if get_token() is None:
                raise ConfigError(
                    f"the Space {space!r} needs a Hugging Face token", hint="Set HF_TOKEN, or run `hf auth login`."
                )
        elif server and not (
            os.environ.get("TRACKIO_WRITE_TOKEN") or "write_token" in parse_qs(urlsplit(server).query)
        ):
            raise ConfigError(
                "the Trackio server needs a write token",
                hint="Set TRACKIO_WRITE_TOKEN, or append ?write_token=${NAME} to server_url.",
            )
