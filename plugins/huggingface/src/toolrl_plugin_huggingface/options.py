"""Options of the data set `huggingface`."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from toolrl.builtin.datasets import FieldMapping
from toolrl.errors import DataError
from toolrl_common.hub import check_on_hub

BUILDERS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
"""What reads a file, by its ending."""


class HuggingFaceOptions(BaseModel):
    """Options of `huggingface`."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(min_length=1, description="A name of the Hub, a folder, or a CSV, JSON or parquet file.")
    config: str | None = Field(None, min_length=1, description="The configuration, where the data set has several.")
    split: str = Field("train", min_length=1, description="The split, or a slice of it: `train[:1000]`.")
    revision: str | None = Field(None, min_length=1, description="A branch, tag or commit of the Hub's repository.")
    files: list[str] = Field(default_factory=list, description="Only these files of the repository or folder; globs.")
    streaming: bool = Field(False, description="Read the first `limit` rows without downloading the others.")
    limit: int | None = Field(None, ge=1, description="Only the first so many rows.")
    fields: FieldMapping = Field(default_factory=FieldMapping, description="The columns of a row's fields.")
    environment: str | None = Field(None, description="The environment of rows that name none.")

    @model_validator(mode="after")
    def _streaming_has_an_end(self) -> Self:
        if self.streaming and self.limit is None:
            raise ValueError("streaming: set `limit`, the number of rows to read; training reads rows in any order")
        return self

    @property
    def local(self) -> Path | None:
        """The file or folder, if `path` can only be one."""
        path = Path(self.path).expanduser()
        if path.exists():
            return path
        like_a_path = self.path.startswith((".", "/", "~")) or len(path.parts) > 2 or path.suffix in BUILDERS
        return path if like_a_path else None

    def check_files(self) -> None:
        """Raises DataError for a file or folder that isn't there, and for a name that the Hub doesn't know."""
        path = self.local
        if path is not None and not path.exists():
            hint = f"Relative paths start at {str(Path.cwd())!r}."
            raise DataError(f"there is no file or folder {self.path!r}", hint=hint)
        if path is not None and path.is_file() and path.suffix not in BUILDERS:
            raise DataError(f"files that end in {path.suffix!r} aren't read", hint=f"Known: {', '.join(BUILDERS)}.")
        if path is None:
            check_on_hub(self.path, "dataset", self.revision)
