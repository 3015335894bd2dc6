"""Options of the observer `trackio`."""

from __future__ import annotations

from pydantic import Field

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
