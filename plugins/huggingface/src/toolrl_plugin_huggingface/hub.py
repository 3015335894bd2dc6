"""One question to the Hub before a data set is loaded: `datasets` itself tries for half a minute."""

from __future__ import annotations

import logging
import os
import sys

import huggingface_hub
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

from toolrl.errors import DataError

SECONDS = 5.0
_log = logging.getLogger(__name__)


def ask(name: str, revision: str | None) -> None:
    """Ask for the data set. Where the Hub can't be reached, this process takes what the cache holds from now on.
    Raises DataError for a name or revision that the Hub doesn't know."""
    if huggingface_hub.is_offline_mode():
        return
    try:
        huggingface_hub.HfApi().dataset_info(name, revision=revision, timeout=SECONDS)
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise DataError(
            f"there is no folder {name!r} here, and the Hub has no such data set, or none that you may read",
            hint="Check the name; for a private or gated data set run `hf auth login`.",
        ) from error
    except RevisionNotFoundError as error:
        raise DataError(f"the Hub's data set {name!r} has no revision {revision!r}") from error
    except Exception as error:  # noqa: BLE001 - whatever the library's HTTP client raises
        reason = str(error).strip().splitlines() or [type(error).__name__]
        _log.warning("the Hub can't be reached (%s); %s has to be in its cache", reason[0], name)
        _go_offline()


def _go_offline() -> None:
    """For this process and those that it starts: each file would be asked for again, several times over."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    huggingface_hub.constants.HF_HUB_OFFLINE = True
    if "datasets" in sys.modules:
        sys.modules["datasets"].config.HF_HUB_OFFLINE = True
