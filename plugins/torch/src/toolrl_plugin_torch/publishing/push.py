"""Uploads an exported model to the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from toolrl.errors import ConfigError, ToolrlError, first_line

_EMPTY = {".gitattributes"}


def open_repository(name: str, *, private: bool, overwrite: bool) -> str:
    """Make the model repository `name` (`ORG/NAME`, or `NAME` of the token's user) and return its full name. One that
    is there already has to be empty, unless `overwrite` is set. Raises ToolrlError."""
    if huggingface_hub.get_token() is None:
        raise ConfigError(
            f"--push {name}: there is no token of the Hugging Face Hub here",
            hint="Run `hf auth login`, or set HF_TOKEN; the token has to have write access.",
        )
    api = huggingface_hub.HfApi()
    with _readable_errors(name):
        try:
            return api.create_repo(name, private=private or None).repo_id
        except HfHubHTTPError as error:
            if error.response.status_code != 409:
                raise
        name = name if "/" in name else f"{api.whoami()['name']}/{name}"
        info = api.model_info(name)
    if {file.rfilename for file in info.siblings or ()} - _EMPTY and not overwrite:
        raise ConfigError(
            f"--push {name}: the Hub has a model of this name already",
            hint="Give another name, or replace its files by --overwrite; earlier commits stay on the Hub.",
        )
    if private and not info.private:
        raise ConfigError(f"--push {name}: the repository is public already", hint="Make it private in its settings.")
    return name


def push_folder(folder: Path, name: str, message: str) -> bool:
    """Make the files of a repository those of a folder; whether it is private. Raises ToolrlError."""
    api = huggingface_hub.HfApi()
    with _readable_errors(name):
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message, delete_patterns="*")
        return bool(api.model_info(name).private)


@contextmanager
def _readable_errors(name: str) -> Iterator[None]:
    try:
        yield
    except HFValidationError as error:
        hint = "Give ORG/NAME: letters, digits, -, _ and ., at most 96 characters."
        raise ConfigError(f"--push {name}: no name of a repository", hint=hint) from error
    except HfHubHTTPError as error:
        status, said = error.response.status_code, error.server_message or first_line(error)
        if status == 401:
            hint = "It is wrong or has expired: run `hf auth login`, or set HF_TOKEN, which goes before it."
            raise ConfigError(f"--push {name}: the Hub rejects the token", hint=hint) from error
        if status == 403:
            hint = "Take a token with write access, and a namespace that you may write to: `hf auth whoami`."
            raise ConfigError(f"--push {name}: the token has no permission: {said}", hint=hint) from error
        raise ToolrlError(f"--push {name}: the Hub answers {status}: {said}", hint="Run it again later.") from error
    except Exception as error:
        if isinstance(error, ToolrlError):
            raise
        hint = "Check the network and HF_HUB_OFFLINE, then run it again, with --overwrite where a part was uploaded."
        raise ToolrlError(f"--push {name}: the push failed: {first_line(error)}", hint=hint) from error
