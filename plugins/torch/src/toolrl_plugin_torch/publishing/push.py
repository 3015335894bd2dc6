"""Uploads an exported model to the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError

from toolrl.errors import ConfigError, ToolrlError, first_line


def open_repository(name: str, *, private: bool, overwrite: bool) -> str:
    """Make the model repository `name` (`ORG/NAME`, or `NAME` of the token's user) and return its full name. One that
    is there already has to be empty, unless `overwrite` is set. Raises ToolrlError."""
    api = huggingface_hub.HfApi()
    with _readable_errors(name):
        name = api.create_repo(name, private=private or None, exist_ok=True).repo_id
        info = api.model_info(name)
    if {file.rfilename for file in info.siblings or ()} - {".gitattributes"} and not overwrite:
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
    except Exception as error:
        said = error.server_message if isinstance(error, HfHubHTTPError) else None
        raise ToolrlError(
            f"--push {name}: {said or first_line(error)}",
            hint="Log in by `hf auth login`, or set HF_TOKEN, with write access to this namespace; check the network.",
        ) from error
