"""LoRA adapters that vLLM computes beside weights that stay, and which alone are replaced at an update.

vLLM gets the model as it is without the adapter once. At each update the adapter's tensors, read from the
trainer's module as peft has put them there, are written to a folder in peft's form, and vLLM reads them in the place of
those before: one adapter, under one name, so that requests which are half done go on with the new one. Their keys and
values, and the prefix cache, are as old as with whole weights, and are dropped in the same way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolrl.errors import ConfigError, EngineError
from toolrl.protocols import WeightSource
from toolrl_plugin_vllm.weights import WeightTransfer

NAME = "toolrl"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM has kernels for; an adapter of another rank takes the next one."""
_MERGED = "Set engine.options.lora to merged."


class AdapterTransfer:
    """The trainer's adapter, with the methods of `WeightTransfer`."""

    def __init__(self, weights: WeightSource, directory: Path | None) -> None:
        self._directory = directory
        self._base = WeightTransfer(merged=False)
        self.request: Any = None
        """vLLM's `LoRARequest` for every generation; None before the first load."""
        module = weights.module(data=False)
        settings = settings_of(module)
        rank = max([settings.r, *getattr(settings, "rank_pattern", {}).values()])
        if rank > RANKS[-1]:
            raise ConfigError(
                f"the adapter has rank {rank}, and vLLM takes {RANKS[-1]} at most",
                where="engine.options.lora",
                hint=_MERGED,
            )
        self.rank = next(allowed for allowed in RANKS if allowed >= rank)
        head = module.get_output_embeddings()
        adapted = ((name, layer) for name, layer in module.named_modules() if hasattr(layer, "lora_A"))
        self._layers = {name.rpartition(".")[2]: layer for name, layer in adapted}
        if any(layer is head for layer in self._layers.values()):
            raise ConfigError(
                "the adapter is on the output layer, too, where vLLM mixes up the rows of a batch when it is asked for "
                "the log-probabilities of a prompt, which the check of weights needs",
                where="engine.options.lora",
                hint=_MERGED,
            )

    def arguments(self) -> dict[str, Any]:
        """vLLM's `EngineArgs` for it: one adapter, on the layers that it has and no other."""
        return {
            "enable_lora": True,
            "max_loras": 1,
            "max_lora_rank": self.rank,
            "lora_target_modules": sorted(self._layers),
        }

    def load(self, engine: Any, weights: WeightSource) -> None:
        """Put the adapter into vLLM's engine in the place of the one before, and first the model that it belongs to."""
        from vllm.lora.request import LoRARequest

        from toolrl_plugin_torch.weights import temporary_folder

        if self.request is None:
            self._base.load(engine, weights)
        with temporary_folder(f"adapter-{weights.version}", self._directory) as folder:
            write_adapter(weights, Path(folder))
            if not engine.add_lora(LoRARequest(NAME, 1, folder, load_inplace=True)):
                raise EngineError("vLLM takes no adapter")
            # Requests name it without its folder being read again.
            self.request = LoRARequest(NAME, 1, folder)

    def check(self, weights: WeightSource, who: str) -> None:
        """As WeightTransfer; the adapter's own tensors are read by vLLM alone."""
        self._base.check(weights, who)


def settings_of(module: Any) -> Any:
    """peft's settings of the adapter in a module. Raises ConfigError where there is none."""
    found = getattr(module, "peft_config", None) or {}
    if len(found) != 1:
        raise ConfigError(
            "lora is adapter, and the model that is trained has "
            + ("no LoRA adapter" if not found else f"{len(found)} adapters: {', '.join(found)}"),
            where="engine.options.lora",
            hint="Train one with model.lora, or leave engine.options.lora out.",
        )
    return next(iter(found.values()))


def write_adapter(weights: WeightSource, folder: Path) -> None:
    """The adapter's tensors and settings, as peft writes them."""
    from safetensors.torch import save_file

    settings_of(weights.module(data=False)).save_pretrained(str(folder))
    tensors = {
        f"base_model.model.{name.replace('.default.', '.')}": tensor.cpu().contiguous()
        for name, tensor in weights.trained_tensors()
        if ".lora_" in name  # and no buffer
    }
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
