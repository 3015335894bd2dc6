"""Trees through the layers of the llama family on a CPU without the modules' own passes (`fused_layer.py`).

It stands in for a module only where every part is exactly what it expects and nothing hangs on it: no adapter, no hook,
no dropout, no gradient checkpointing, no compiled layer, all weights in float32: in 16 bits the modules round between
their steps, and float64 is for comparisons to the last digit. A trial compares it with the module, hidden states and
gradients, before it is used; where the two differ the module is used, with a warning.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn

from toolrl.errors import first_line
from toolrl_plugin_torch.fused.layer import Pass, Weights, layer
from toolrl_plugin_torch.prefixes.tree import TokenTree, grow, trial_sequences
from toolrl_plugin_torch.prefixes.tree_attention import model_inputs, over_trees

logger = logging.getLogger(__name__)

_FAMILY = {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
_TORCH_PARTS = (nn.Linear, nn.Embedding, nn.ModuleList, nn.SiLU)
_STATIC_ROPE = {"default", "linear", "llama3", "yarn"}
"""Kinds of rotary embedding whose angles depend on the position alone."""
_TOLERANCE = 1e-3
"""Greatest difference of a hidden state or a gradient, relative to the greatest of its tensor. Right ones differ by
1e-6 to 1e-5."""
_FLOOR = 1e-3
"""A gradient smaller than this part of the greatest of all may be nothing but rounding: a key's bias has none."""


class FusedLayers:
    """The layers of one model."""

    def __init__(self, model: Any) -> None:
        self._model = model
        attention = model.model.layers[0].self_attn
        self._dim = int(attention.head_dim)
        self._heads = int(model.config.num_attention_heads)
        self._scale = float(attention.scaling)
        self._eps = float(model.model.norm.variance_epsilon)

    @classmethod
    def of(cls, model: Any) -> FusedLayers | None:
        """For a model that it can stand in for, after a trial, else None."""
        if type(model).__name__ not in _FAMILY or not type(model).__module__.startswith("transformers.models."):
            return None
        config = model.config
        plain = (
            getattr(config, "hidden_act", None) == "silu"
            and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
            and getattr(config, "pretraining_tp", 1) == 1
            and model.model.layers[0].self_attn.o_proj.bias is None
            and model.model.layers[0].mlp.up_proj.bias is None
            and not getattr(config, "attention_dropout", 0.0)
            and getattr(model.model.rotary_emb, "rope_type", None) in _STATIC_ROPE
        )
        if not plain:
            return None
        fused = cls(model)
        return fused if fused.usable and fused._agrees() else None

    @property
    def usable(self) -> bool:
        """False where it would pass by something that hangs on the module, or isn't written for its tensors."""
        if torch.is_autocast_enabled("cpu"):
            return False
        source = type(self._model).__module__
        for part in self._model.modules():
            known = type(part) in _TORCH_PARTS or type(part).__module__ in (source, "transformers.activations")
            hooked = part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
            replaced = "forward" in vars(part) or part._compiled_call_impl is not None
            if not known or hooked or replaced or getattr(part, "gradient_checkpointing", False):
                return False
        return all(
            type(parameter) is nn.Parameter and parameter.dtype == torch.float32 and parameter.device.type == "cpu"
            for parameter in self._model.parameters()
        )

    def __call__(self, tree: TokenTree, rows_M: Tensor) -> Tensor:
        """Hidden states `[M, H]` behind the last norm at some places of the row."""
        model = self._model.model
        x_NH = F.embedding(tree.input_ids_N, model.embed_tokens.weight, model.embed_tokens.padding_idx)
        settings = self._pass(tree, x_NH)
        # Behind the last attention nothing else is needed. A place may be asked for several times.
        early = rows_M.numel() < tree.positions
        for number, module in enumerate(model.layers, start=1):
            last = number == len(model.layers)
            x_NH = layer(x_NH, _weights(module), settings, rows_M if early and last else None)
        if not early:
            x_NH = x_NH.index_select(0, rows_M)
        hidden_NH: Tensor = model.norm(x_NH)
        return hidden_NH

    def _pass(self, tree: TokenTree, x_NH: Tensor) -> Pass:
        cos_1ND, sin_1ND = self._model.model.rotary_emb(x_NH.detach(), tree.position_ids_N[None])
        half = self._dim // 2
        sin_ND = torch.cat((-sin_1ND[0, :, :half], sin_1ND[0, :, half:]), dim=-1)
        keep = torch.is_grad_enabled()
        cos_N1D, sin_N1D = cos_1ND[0][:, None], sin_ND[:, None]
        return Pass(tree, cos_N1D, sin_N1D, self._heads, self._dim, self._eps, self._scale, keep)

    def _agrees(self) -> bool:
        """Compare with the module on a small tree. Warns where they differ."""
        name = type(self._model).__name__
        try:
            off = self.difference()
        except (TypeError, ValueError, IndexError, AttributeError, NotImplementedError, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            why = f"they fail with {type(error).__name__}: {first_line(error)}"
        else:
            if off <= _TOLERANCE:
                return True
            why = f"hidden states or gradients of a trial were off by {off:.3g}"
        logger.warning("updates of %s go through its own layers; the faster ones can't be used: %s", name, why)
        return False

    def difference(self) -> float:
        """From the module, on a small tree: the greatest relative difference of hidden states and gradients."""
        tree = _trial(self._model.get_input_embeddings().weight.shape[0])
        rows_M = torch.arange(1, tree.positions, 2)
        chance = torch.Generator().manual_seed(0)
        parameters = [parameter for parameter in self._model.model.parameters() if parameter.requires_grad]
        found: list[list[Tensor]] = []
        for fused in (False, True):
            with torch.set_grad_enabled(bool(parameters)):
                if fused:
                    hidden = self(tree, rows_M)
                else:
                    with over_trees([self._model]):
                        hidden = self._model.model(**model_inputs(tree))[0][0].index_select(0, rows_M)
                weight = torch.randn(hidden.shape, generator=chance.manual_seed(1), dtype=hidden.dtype)
                grads = torch.autograd.grad((hidden * weight).sum(), parameters) if parameters else ()
            found.append([hidden.detach(), *grads])
        floor = _FLOOR * max((float(grad.abs().max()) for grad in found[0][1:]), default=0.0)
        off = [
            (one - other).abs().max() / one.abs().max().clamp(min=max(floor, 1e-12))
            for one, other in zip(*found, strict=True)
        ]
        return float(torch.stack(off).max())  # Python's max would pass over a NaN.


def _trial(vocabulary: int) -> TokenTree:
    chance = torch.Generator().manual_seed(0)
    sequences = trial_sequences(lambda count: torch.randint(vocabulary, (count,), generator=chance).tolist())
    return grow([[*prompt, *tail] for prompt, tail in sequences])


def _weights(module: Any) -> Weights:
    """A layer's parameters, read anew each time, since an optimizer may replace them."""
    attention, mlp = module.self_attn, module.mlp
    return Weights(
        module.input_layernorm.weight,
        attention.q_proj.weight, attention.q_proj.bias,
        attention.k_proj.weight, attention.k_proj.bias,
        attention.v_proj.weight, attention.v_proj.bias,
        attention.q_norm.weight if hasattr(attention, "q_norm") else None,
        attention.k_norm.weight if hasattr(attention, "k_norm") else None,
        attention.o_proj.weight,
        module.post_attention_layernorm.weight,
        mlp.gate_proj.weight,
        mlp.up_proj.weight,
        mlp.down_proj.weight,
    )  # fmt: skip
