"""Make a model's folder of a GGUF file, for a machine that can't download one and takes files in pieces only.

    split -b 50M model.gguf piece-                                  # where the file is
    python tests/gpu/unpack.py models/smollm2 piece-*               # where it is needed, with all pieces there

Needs `gguf` beside torch and transformers. Weights are written in bfloat16. An output matrix that is the embedding but
for the rounding of its own quantisation is tied to it, as it was in the model. The tokenizer is the file's, or that of
`--tokenizer FOLDER`; `--sha256` checks the joined file.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TIED = 0.15
"""Relative distance of two quantised copies of one matrix, at most; other matrices are more than 1 apart."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dest", type=Path, help="the folder to write")
    parser.add_argument("pieces", type=Path, nargs="+", help="the file, or its pieces in their order")
    parser.add_argument("--tokenizer", type=Path, help="a folder with the tokenizer")
    parser.add_argument("--sha256", help="of the whole file")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        digest = join(args.pieces, file)
        if args.sha256 and digest != args.sha256:
            raise SystemExit(f"the joined file has SHA-256 {digest}, expected {args.sha256}: is a piece missing?")
        with file.open("rb") as stream:
            if stream.read(4) != b"GGUF":
                raise SystemExit(f"{args.pieces[0]} doesn't begin as a GGUF file does: name the pieces in their order")
        count, tied = convert(file, args.dest, args.tokenizer)
    print(f"{args.dest}: {count / 1e6:.1f}M parameters{', output tied to the embedding' if tied else ''}")
    return 0


def join(pieces: Sequence[Path], file: Path) -> str:
    """Write the pieces one after another; the SHA-256 of the whole."""
    digest = hashlib.sha256()
    with file.open("wb") as target:
        for piece in pieces:
            with piece.open("rb") as source:
                while block := source.read(1 << 20):
                    digest.update(block)
                    target.write(block)
    return digest.hexdigest()


def convert(file: Path, dest: Path, tokenizer: Path | None) -> tuple[int, bool]:
    """Write the model's folder: its number of parameters, and whether its ends are tied."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    source = {"gguf_file": file.name} if tokenizer is None else {}
    words: Any = transformers.AutoTokenizer.from_pretrained(tokenizer or file.parent, **source)
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    tied = head is embedding or bool((head - embedding).norm() <= TIED * head.norm())
    config.tie_word_embeddings = tied
    state = {name: value.detach().to(torch.bfloat16) for name, value in model.state_dict().items()}
    plain: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    plain.load_state_dict(state, strict=False)
    with torch.no_grad():
        # Of two copies of one matrix the head's is quantised less.
        plain.get_output_embeddings().weight.copy_(head)
    plain.generation_config.eos_token_id = words.eos_token_id
    plain.generation_config.pad_token_id = words.pad_token_id
    plain.save_pretrained(dest)
    words.save_pretrained(dest)
    return sum(parameter.numel() for parameter in plain.parameters()), tied


if __name__ == "__main__":
    sys.exit(main())
