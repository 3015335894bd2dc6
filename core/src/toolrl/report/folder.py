"""See `toolrl.runs.folder`."""

from toolrl.runs.folder import RunFolder, describe_run

__all__ = ["RunFolder", "describe_run"]
