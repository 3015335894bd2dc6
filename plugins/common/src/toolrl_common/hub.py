"""Asks the Hugging Face Hub once for a model or data set before it is loaded: the Hub's own libraries retry for half a
minute before they report a missing network."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from pathlib import Path
from typing import Any, Literal

from toolrl.errors import DataError

SECONDS = 5.0
_CONFIGS = ("config.json", "adapter_config.json")
_log = logging.getLogger(__name__)


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
    except errors.GatedRepoError as error:
        raise DataError(
            f"the Hub's {what} {name!r} is gated, and this user has no access to it",
            hint=f"Ask for access on {huggingface_hub.constants.ENDPOINT}/{'datasets/' * (kind == 'dataset')}{name}, "
            "then run `hf auth login` or set HF_TOKEN.",
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise DataError(
            f"there is no folder {name!r} here, and the Hub has no such {what}, or none that you may read",
            hint="Check the name; for a private one run `hf auth login` or set HF_TOKEN.",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise DataError(f"the Hub's {what} {name!r} has no revision {revision!r}") from error
    except errors.HfHubHTTPError as error:
        if error.response.status_code != 401:
            _fall_back_on_cache(name, kind, error)
        else:
            hint = "It is wrong or has expired: run `hf auth login`, or set HF_TOKEN, which goes before it."
            raise DataError("the Hub rejects the token", hint=hint) from error
    except Exception as error:  # noqa: BLE001 - whatever the library's HTTP client raises
        _fall_back_on_cache(name, kind, error)
    else:
        _check_files(name, kind, info)


def _check_files(name: str, kind: str, info: Any) -> None:
    files = {file.rfilename for file in info.siblings or ()}
    if kind == "model" and _CONFIGS[1] in files and _CONFIGS[0] not in files:
        hint = f"Run `hf download {name} --local-dir FOLDER`, and name that folder here."
        raise DataError(f"the Hub's model {name!r} is an adapter", hint=hint)


def _fall_back_on_cache(name: str, kind: str, error: Exception) -> None:
    """Go offline: otherwise each file would be asked for several times over. Raises DataError for what isn't cached."""
    import huggingface_hub

    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if not (_cached_model(name) if kind == "model" else _cached_data_set(name)):
        option = " --repo-type dataset" if kind == "dataset" else ""
        raise DataError(
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

    return isinstance(huggingface_hub.try_to_load_from_cache(name, _CONFIGS[0]), str)


def _cached_data_set(name: str) -> bool:
    """Whether `datasets` has made tables of it: as `owner___name`, with capitals of the name spelled as `_x`."""
    from huggingface_hub import constants

    folder = Path(os.environ.get("HF_DATASETS_CACHE", Path(constants.HF_HOME) / "datasets")).expanduser()
    wanted = name.replace("/", "").replace("_", "").lower()
    return folder.is_dir() and any(path.name.replace("_", "").lower() == wanted for path in folder.iterdir())
