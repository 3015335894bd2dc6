"""Peak memory of a rank that loads a model of 1 GB in float32, probes it, makes an update, and writes a checkpoint.

    python tests/benchmarks/rank_memory.py

Prints for 1, 2 and 4 ranks on this host (gloo) the greatest VmHWM of a rank in MiB after each of them, less what the
same ranks take for a model of a few kilobytes; and a rank's shard, and twice the greatest tensor, to compare with.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

STAGES = ("load", "probe", "checkpoint", "update")
MIB = 2**20
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(MIB)}
"""glibc gives a freed tensor back to the system; else it keeps what layers took one after another."""
_SMALL = {"vocab_size": 200, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
_LARGE = {"vocab_size": 32_000, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 15}


def make(folder: Path, shape: dict[str, int]) -> tuple[int, int]:
    """Write a random model with a tokenizer; bytes of all its tensors, and of the greatest."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models

    rest = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "tie_word_embeddings": True}
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**shape, **rest))
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(100)}, "w3"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0").save_pretrained(folder)
    sizes = [parameter.nbytes for parameter in model.parameters()]
    return sum(sizes), max(sizes)


def rank(folder: Path) -> None:
    """One rank: its peaks go to files in the folder."""
    import torch

    from toolrl_plugin_torch.fine_tuning.demonstrations import Demonstration
    from toolrl_plugin_torch.options import ModelConfig, SftConfig
    from toolrl_plugin_torch.policy import load_policy
    from toolrl_plugin_torch.sharding.process_group import join
    from toolrl_plugin_torch.trainer import SupervisedTrainer

    torch.set_num_threads(1)
    ranks = join("cpu", 300.0)
    peaks = []

    def note() -> None:
        status = Path("/proc/self/status").read_text().splitlines()
        peaks.append(next(line.split()[1] for line in status if line.startswith("VmHWM")))
        ranks.barrier(f"peak {len(peaks)}")

    policy = load_policy(ModelConfig(path=str(folder)), str(folder), torch.device("cpu"), ranks)
    note()
    trainer = SupervisedTrainer(policy, SftConfig(from_run="x", steps=1), folder, ranks=ranks)
    note()
    policy.save_trained(folder / "written", "the checkpoint")
    note()
    trainer.update([Demonstration(tuple(range(5, 37)), (0,) * 8 + (1,) * 24)])
    note()
    (folder / f"peaks-{ranks.rank}").write_text(" ".join(peaks))
    ranks.leave()


def measure(size: int, folder: Path) -> list[int]:
    """The greatest peak of a rank at each stage, in MiB."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    environment = {**os.environ, **MALLOC, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *torchrun, __file__, str(folder)], check=True, env=environment)
    peaks = [(folder / f"peaks-{number}").read_text().split() for number in range(size)]
    return [max(map(int, stage)) // 1024 for stage in zip(*peaks, strict=True)]


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        make(Path(place) / "small", _SMALL)
        whole, greatest = make(Path(place) / "large", _LARGE)
        print(f"model {whole / MIB:.0f} MiB, greatest tensor {greatest / MIB:.0f} MiB")
        print("| ranks | shard | shard and two tensors |", *(f"{stage} |" for stage in STAGES), "process |")
        for size in (1, 2, 4):
            base, found = (measure(size, Path(place) / name) for name in ("small", "large"))
            above = [f"{peak - least} |" for peak, least in zip(found, base, strict=True)]
            shard = whole / size
            print(f"| {size} | {shard / MIB:.0f} | {(shard + 2 * greatest) / MIB:.0f} |", *above, f"{base[0]} |")


if __name__ == "__main__":
    rank(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
