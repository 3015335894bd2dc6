"""The tokenizer of a parser that reads token ids."""

from __future__ import annotations

from typing import Any

from toolrl.errors import ConfigError
from toolrl.protocols import BuildContext


def parser_tokenizer(folder: str | None, context: BuildContext, parser: str) -> Any:
    """The tokenizer in `folder`, or else the model's own. Raises ConfigError where there is none."""
    where = context.where or "parser"
    if folder is None:
        if context.tokenizer is None:
            raise ConfigError(
                f"{parser} reads token ids and needs the model's tokenizer",
                where=where,
                hint="Give the folder of one, for example `--option tokenizer=./models/qwen3-0.6b`.",
            )
        return context.tokenizer
    try:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (ImportError, OSError, ValueError) as error:
        raise ConfigError(
            f"no tokenizer can be loaded from {folder!r}: {error}",
            where=where,
            hint="Give a folder with a tokenizer.json.",
        ) from error
