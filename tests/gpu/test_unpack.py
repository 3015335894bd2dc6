"""A model's folder out of the pieces of a GGUF file."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SCRIPT = Path(__file__).with_name("unpack.py")
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 128}  # fmt: skip
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm"}  # fmt: skip


def unpack(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def write_gguf(file: Path, model: Any, *, head: bool) -> None:
    """A Qwen2 as llama.cpp writes it, in float32; with `head` the output matrix stands in it a second time."""
    gguf = pytest.importorskip("gguf", reason="reads GGUF files: pip install gguf")
    writer = gguf.GGUFWriter(str(file), "qwen2")
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(model.config.vocab_size)
    for name, value in model.state_dict().items():
        parts = name.removeprefix("model.").split(".")
        short = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}.get(parts[0])
        if parts[0] == "layers":
            short = f"blk.{parts[1]}.{NAMES['.'.join(parts[2:-1])]}"
        if parts[0] != "lm_head" or head:
            # The head's copy is a little off, as another quantisation leaves it.
            off = 1.01 if parts[0] == "lm_head" else 1.0
            writer.add_tensor(f"{short}.{parts[-1]}", (value * off).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("head", [False, True], ids=["no output matrix", "a second copy"])
def test_the_folder_holds_the_model(tmp_path: Path, head: bool) -> None:
    torch.manual_seed(0)
    make = SCRIPT.parents[2] / "docs" / "examples" / "quickstart" / "make_model.py"
    subprocess.run([sys.executable, str(make), str(tmp_path / "tiny")], check=True, capture_output=True)
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "tiny")
    config = transformers.Qwen2Config(**SIZES, vocab_size=len(words), tie_word_embeddings=True)
    model = transformers.Qwen2ForCausalLM(config)
    write_gguf(tmp_path / "model.gguf", model, head=head)
    data = (tmp_path / "model.gguf").read_bytes()
    pieces = [tmp_path / "piece-a", tmp_path / "piece-b"]
    pieces[0].write_bytes(data[:70_001])
    pieces[1].write_bytes(data[70_001:])
    common = ["--tokenizer", str(tmp_path / "tiny"), "--sha256", hashlib.sha256(data).hexdigest()]
    done = unpack(str(tmp_path / "made"), *map(str, pieces), *common)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("output tied to the embedding")
    made = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "made")
    assert made.config.tie_word_embeddings
    wanted = model.lm_head.weight * (1.01 if head else 1.0)
    assert torch.equal(made.lm_head.weight, wanted.to(torch.bfloat16))
    assert made.get_input_embeddings().weight is made.lm_head.weight
    for name in ("model.layers.1.mlp.down_proj.weight", "model.layers.0.self_attn.q_proj.weight"):
        assert torch.allclose(made.state_dict()[name].float(), model.state_dict()[name], atol=1e-3), name
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "made").eos_token == words.eos_token


def test_pieces_that_are_not_all_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"GGUF and so on")
    done = unpack(str(tmp_path / "made"), str(tmp_path / "a"), "--sha256", "0" * 64)
    assert done.returncode != 0
    assert "is a piece missing?" in done.stderr
    (tmp_path / "b").write_bytes(b"and so on")
    done = unpack(str(tmp_path / "made"), str(tmp_path / "b"), str(tmp_path / "a"))
    assert done.returncode != 0
    assert "name the pieces in their order" in done.stderr
    assert not (tmp_path / "made").exists()
