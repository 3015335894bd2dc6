"""The memory that a run may use here, and the size of a model, without importing torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolrl.errors import DataError
from toolrl.runs.folder import run_and_checkpoint
from toolrl_common.hub import HubUnreachableError, check_on_hub

GIB = 2**30


@dataclass(frozen=True)
class Machine:
    """Memory in GiB."""

    ram: float
    gpus: tuple[tuple[str, float], ...] = ()
    """Name and memory of each."""

    def describe(self) -> str:
        """In words."""
        if not self.gpus:
            return f"no GPU, {self.ram:.0f} GiB of memory"
        name, memory = self.gpus[0]
        return f"{len(self.gpus)} × {name} with {memory:.0f} GiB"


def machine() -> Machine:
    """The GPUs that nvidia-smi reports, and the memory of this machine."""
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    if shutil.which("nvidia-smi") is None:
        return Machine(ram)
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
        gpus = [line.rsplit(",", 1) for line in text.splitlines() if line.strip()]
        return Machine(ram, tuple((name.strip(), float(mib) / 1024) for name, mib in gpus))
    except (OSError, subprocess.SubprocessError, ValueError):
        return Machine(ram)


@dataclass(frozen=True)
class Model:
    """What a model's files say; None for what isn't known."""

    parameters: int | None = None
    context: int | None = None
    """Tokens."""
    vocabulary: int | None = None
    chat_template: str = ""

    def describe(self) -> str:
        """The number of parameters in words."""
        if self.parameters is None:
            return "of unknown size, as its config.json isn't here"
        big = self.parameters >= 1e9
        return (
            f"about {self.parameters / 1e9:.1f} B parameters"
            if big
            else f"about {self.parameters / 1e6:.1f} M parameters"
        )


def model(path: str) -> Model:
    """The model at `model.path`: a folder, a run's folder, or a model of the Hub, of which config.json is fetched where
    the Hub can be reached. Raises DataError for a model that doesn't exist."""
    found = run_and_checkpoint(path)
    if found is not None:
        folders = sorted((found[0] / "checkpoints").glob("step-*"))
        path = str(folders[-1]) if folders else path
    config = Path(path) / "config.json" if Path(path).is_dir() else _hub_config(path)
    try:
        values: dict[str, Any] = json.loads(config.read_bytes() if config else b"{}")
    except (OSError, ValueError):
        values = {}
    values = values.get("text_config", values)
    templates = [Path(path) / "chat_template.jinja", Path(path) / "tokenizer_config.json"]
    text = "".join(it.read_text(encoding="utf-8", errors="replace") for it in templates if it.is_file())
    return Model(_parameters(values), values.get("max_position_embeddings"), values.get("vocab_size"), text)


def _hub_config(name: str) -> Path | None:
    """config.json of a model of the Hub, from its cache or the Hub; None where neither can be asked. Raises DataError
    for a name that the Hub doesn't have, or that can only be a folder's."""
    here = Path(name)
    if name.startswith((".", "~")) or here.is_absolute() or len(here.parts) != 2 or here.parent.is_dir():
        raise DataError(f"there is no folder {name!r}", hint=f"Relative paths start at {str(Path.cwd())!r}.")
    try:
        check_on_hub(name, "model")  # Once: the library itself retries for half a minute.
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(name, "config.json", etag_timeout=2))
    except HubUnreachableError:
        return None
    except DataError:
        raise
    except Exception:  # noqa: BLE001 - no library, no such file: its size stays unknown
        return None


def _parameters(config: dict[str, Any]) -> int | None:
    """Of a decoder of llama's kind, within some per cent."""
    try:
        width, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
        heads = int(config["num_attention_heads"])
        head = int(config.get("head_dim") or width // heads)
        keys = int(config.get("num_key_value_heads") or heads)
        experts = int(config.get("num_experts") or config.get("num_local_experts") or 1)
        inner = int(config.get("moe_intermediate_size") or config["intermediate_size"])
        layer = 2 * width * head * (heads + keys) + 3 * width * inner * experts
        embeddings = int(config["vocab_size"]) * width * (1 if config.get("tie_word_embeddings") else 2)
        return layers * layer + embeddings
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
