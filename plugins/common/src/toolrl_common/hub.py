"""Asks the Hugging Face Hub once for a model or data set before it is loaded: the Hub's own libraries retry for half a
minute before they report a missing network."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from pathlib import Path
from typing import Literal

from toolrl.errors import DataError

SECONDS = 5.0
_log = logging.getLogger(__name__)


class HubUnreachableError(DataError):
    """A model or data set that isn't in the cache while the Hub can't be reached: whether it exists isn't known."""


def check_on_hub(name: str, kind: Literal["model", "dataset"], revision: str | None = None) -> None:
    """Raise DataError for a model or data set that the Hub doesn't have, that this user may not read, or that is not
    in the cache while the Hub can't be reached. In the last case a cached one is used, and the process goes offline."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return
    import huggingface_hub
    from huggingface_hub import errors

    what, api = "model" if kind == "model" else "data set", huggingface_hub.HfApi()
    try:
        info = api.repo_info(name, repo_type=kind, revision=revision, timeout=SECONDS)
        if getattr(info, "gated", False):
            api.auth_check(name, repo_type=kind)
    except (errors.HFValidationError, errors.HfHubHTTPError) as error:
        if getattr(getattr(error, "response", None), "status_code", 404) not in (401, 403, 404):
            _fall_back_on_cache(name, kind, error)
            return
        raise DataError(
            f"there is no folder {name!r} here, and the Hub has no such {what}, or none that you may read "
            f"({_reason(error)})",
            hint="Check the name and the revision; for a private or a gated one run `hf auth login` or set HF_TOKEN.",
        ) from error
    except Exception as error:  # noqa: BLE001 - whatever the library's HTTP client raises
        _fall_back_on_cache(name, kind, error)


def _reason(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _fall_back_on_cache(name: str, kind: str, error: Exception) -> None:
    """Go offline: otherwise each file would be asked for several times over. Raises DataError for what isn't cached."""
    import huggingface_hub

    reason = _reason(error)
    if not (_cached_model(name) if kind == "model" else _cached_data_set(name)):
        option = " --repo-type dataset" if kind == "dataset" else ""
        raise HubUnreachableError(
            f"{name!r} is no folder here and isn't in the Hub's cache, and the Hub can't be reached ({reason})",
            hint=f"Where it can, run `hf download {name}{option} --local-dir FOLDER`, and name that folder here.",
        ) from error
    if huggingface_hub.is_offline_mode():
        return
    _log.warning("the Hub can't be reached (%s); %s comes from its cache", reason, name)
    os.environ["HF_HUB_OFFLINE"] = "1"  # for processes that this one starts
    huggingface_hub.constants.HF_HUB_OFFLINE = True
    if "datasets" in sys.modules:
        sys.modules["datasets"].config.HF_HUB_OFFLINE = True


def _cached_model(name: str) -> bool:
    import huggingface_hub

    return isinstance(huggingface_hub.try_to_load_from_cache(name, "config.json"), str)


def _cached_data_set(name: str) -> bool:
    """Whether `datasets` has made tables of it: as `owner___name`, with capitals of the name spelled as `_x`."""
    from huggingface_hub import constants

    folder = Path(os.environ.get("HF_DATASETS_CACHE", Path(constants.HF_HOME) / "datasets")).expanduser()
    wanted = name.replace("/", "").replace("_", "").lower()
    return folder.is_dir() and any(path.name.replace("_", "").lower() == wanted for path in folder.iterdir())
