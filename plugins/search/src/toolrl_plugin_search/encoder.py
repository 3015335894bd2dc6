"""An encoder of texts for dense search: a transformers model, mean pooling, vectors of length 1.

Models of the E5 family are trained with "query: " and "passage: " before the texts; so that is the default for all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from toolrl.errors import ConfigError, PluginError

EXTRA = "pip install 'toolrl-plugin-search[dense]'"
QUERY_PREFIX, PASSAGE_PREFIX = "query: ", "passage: "
MAX_TOKENS = 256
Array = np.ndarray[Any, Any]


class Encoder:
    """Texts to vectors. One thread at a time."""

    def __init__(self, folder: str, *, device: str = "cpu", max_tokens: int = MAX_TOKENS, batch_size: int = 32) -> None:
        """`folder` holds a transformers model with its tokenizer; no code of it is run, and nothing is downloaded.
        Raises PluginError where transformers is missing, ConfigError where the model can't be loaded."""
        try:
            import torch
            import transformers
        except ModuleNotFoundError as error:
            raise PluginError(f"dense search needs {error.name}", hint=EXTRA) from error
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model = transformers.AutoModel.from_pretrained(folder, local_files_only=True)
            self._model = model.to(device).eval()
        except Exception as error:  # a torn file is an error of tokenizers' or of safetensors' own
            raise ConfigError(
                f"the encoder {folder!r} can't be loaded: {error}", hint="Give the folder of a transformers model."
            ) from error
        self._torch = torch
        self._device = device
        self._max_tokens = min(max_tokens, _positions(model.config))
        self._batch_size = batch_size

    @property
    def size(self) -> int:
        """Numbers of a vector."""
        return int(self._model.config.hidden_size)

    def encode(self, texts: Sequence[str]) -> Array:
        """Vectors [texts, size] of length 1, float32. Texts are sorted by length for it, so that little is padding."""
        found: Array = np.empty((len(texts), self.size), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        for start in range(0, len(order), self._batch_size):
            places = order[start : start + self._batch_size]
            found[places] = self._batch([texts[place] for place in places])
        return found

    def _batch(self, texts: list[str]) -> Array:
        torch = self._torch
        inputs = self._tokenizer(
            texts, max_length=self._max_tokens, padding=True, truncation=True, return_tensors="pt"
        ).to(self._device)
        if inputs["input_ids"].shape[1] == 0:  # Texts without a token are like nothing.
            return np.zeros((len(texts), self.size), dtype=np.float32)
        with torch.inference_mode():
            hidden_BTH = self._model(**inputs).last_hidden_state.float()
            mask_BT1 = inputs["attention_mask"].unsqueeze(-1).float()
            pooled_BH = (hidden_BTH * mask_BT1).sum(1) / mask_BT1.sum(1).clamp(min=1)
            vectors: Array = torch.nn.functional.normalize(pooled_BH, dim=-1).cpu().numpy()
        return vectors


def _positions(config: Any) -> int:
    """How many tokens a model takes; without a bound where its config names none."""
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return sys.maxsize
    # Models of the Roberta family count positions from behind the padding's number on.
    padding = getattr(config, "pad_token_id", None)
    behind = padding + 1 if "roberta" in str(config.model_type) and isinstance(padding, int) else 0
    return max(positions - behind, 1)
