"""Attention over a tree of sequences by several kernels, forward and backward, and their error against float64.

The load: a system prompt, two prompts below it and four completions of different length below each. `merge` is what
updates use; `flex` computes the same row with a mask by blocks; `padded` and `cuDNN` compute each sequence whole.
`one sequence` is a causal pass over as many tokens: what the kernel itself can do. TFLOP/s are those of the work that
the tree needs, 4 · heads · dimension · pairs forward and 2.5 times that backward, whatever a kernel computes besides.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from device import device, peak, reset_peak, seconds
from figures import Figures
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

DIM = 128
_ROWS = 512
"""Queries that the reference computes at once."""


def two_to_one(figures: Figures, dry: bool) -> None:
    _lengths(figures, dry, 16, 8)


def four_to_one(figures: Figures, dry: bool) -> None:
    _lengths(figures, dry, 32, 8)


def _lengths(figures: Figures, dry: bool, heads: int, key_heads: int) -> None:
    load = f"GQA {heads // key_heads}:1"
    if dry:
        heads, key_heads = heads // key_heads, 1
    for name, tokens in (("16k", 2**14), ("64k", 2**16)):
        _kernels(figures, dry, f"{load}, {name}", tokens // 128 if dry else tokens, heads, key_heads)


class Problem:
    """Tensors `[tokens, heads, dimension]` of a tree, a gradient of the output, and the reference."""

    def __init__(self, tokens: int, heads: int, key_heads: int, where: torch.device) -> None:
        from toolrl_plugin_torch.prefixes.tree import grow

        chance, part = random.Random(0), tokens // 16
        system = chance.choices(range(1000), k=part)
        sequences = []
        for _ in range(2):
            prompt = system + chance.choices(range(1000), k=part)
            sequences += [prompt + chance.choices(range(1000), k=part * share // 4) for share in (3, 5, 7, 11)]
        self.tree = grow(sequences).to(where)
        self.where, self.tokens = where, self.tree.positions
        self.until = torch.empty(self.tokens, dtype=torch.int64, device=where)
        for node in self.tree.nodes:
            self.until[node.start : node.end] = node.until
        dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
        torch.manual_seed(0)
        sizes = (heads, key_heads, key_heads, heads)
        self.query, self.key, self.value, self.grad = (
            torch.randn(self.tokens, size, DIM, device=where).to(dtype) for size in sizes
        )
        pairs = sum((it.end - it.start) * (it.end - it.start + 1) / 2 + (it.end - it.start) * (it.until - it.end)
                    for it in self.tree.nodes)  # fmt: skip
        self.operations = 4.0 * heads * DIM * pairs
        lengths = [len(sequence) - 1 for sequence in sequences]
        self.place_BT = self.tree.predictor_BT[:, 1:].to(where)
        self.there_BT = torch.arange(max(lengths), device=where) < torch.tensor(lengths, device=where)[:, None]

    def reference(self) -> list[Tensor]:
        """Output and gradients of query, key and value, in float64."""
        query, key, value, grad = (x.double() for x in (self.query, self.key, self.value, self.grad))
        groups = key.shape[1]
        out, of_query = torch.empty_like(query), torch.empty_like(query)
        of_key, of_value = torch.zeros_like(key), torch.zeros_like(value)
        places = torch.arange(self.tokens, device=self.where)
        for rows in places.split(max(_ROWS * 2**14 // self.tokens, 1)):
            q, g = (x[rows].unflatten(1, (groups, -1)) for x in (query, grad))
            seen = (places <= rows[:, None]) & (rows[:, None] < self.until)
            scores = torch.einsum("qgrd,kgd->grqk", q, key).mul_(DIM**-0.5).masked_fill_(~seen, -torch.inf)
            weights = scores.softmax(-1)
            found = torch.einsum("grqk,kgd->qgrd", weights, value)
            of_scores = torch.einsum("qgrd,kgd->grqk", g, value).sub_((g * found).sum(-1).permute(1, 2, 0)[..., None])
            of_scores.mul_(weights).mul_(DIM**-0.5)
            out[rows], of_value = found.flatten(1, 2), of_value + torch.einsum("grqk,qgrd->kgd", weights, g)
            of_query[rows] = torch.einsum("grqk,kgd->qgrd", of_scores, key).flatten(1, 2)
            of_key += torch.einsum("grqk,qgrd->kgd", of_scores, q)
        return [out, of_query, of_key, of_value]

    def whole(self) -> tuple[list[Tensor], Callable[[list[Tensor]], list[Tensor]]]:
        """The same as sequences `[B, heads, T, dimension]` with a gradient, and a function from their results to the
        tree's: of what stands in several sequences the first counts, and gradients add up."""
        flat, there = self.place_BT.flatten(), self.there_BT.flatten()
        order = torch.arange(len(flat), device=self.where)
        first = torch.full((self.tokens,), len(flat), device=self.where)
        first.scatter_reduce_(0, flat[there], order[there], "amin")
        counts = ((first[flat] == order) & there).view_as(self.place_BT)
        rows = [tensor[self.place_BT].transpose(1, 2) for tensor in (self.query, self.key, self.value)]
        rows.append((self.grad[self.place_BT] * counts[..., None, None]).transpose(1, 2))

        def onto_tree(results: list[Tensor]) -> list[Tensor]:
            out, *grads = (x.transpose(1, 2).flatten(0, 1) for x in results)
            summed = [x.new_zeros(self.tokens, *x.shape[1:], dtype=torch.float32) for x in grads]
            for total, x in zip(summed, grads, strict=True):
                total.index_add_(0, flat[there], x[there].float())
            return [out[first], *summed]

        return [x.contiguous() for x in rows], onto_tree


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def _kernels(figures: Figures, dry: bool, load: str, tokens: int, heads: int, key_heads: int) -> None:
    from toolrl_plugin_torch.prefixes.attention import tree_attention

    problem = Problem(tokens, heads, key_heads, device(dry))
    reference = problem.reference()
    flat = [problem.query, problem.key, problem.value, problem.grad]
    rows, onto_tree = problem.whole()
    one = [x.transpose(0, 1)[None].contiguous() for x in flat]
    causal = 2.0 * heads * DIM * problem.tokens * (problem.tokens + 1)

    def merge(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return tree_attention(query, key, value, problem.tree, DIM**-0.5)

    flash = SDPBackend.MATH if dry else SDPBackend.FLASH_ATTENTION
    cudnn = SDPBackend.MATH if dry else SDPBackend.CUDNN_ATTENTION
    kinds: dict[str, tuple[Attend, list[Tensor], Callable[[list[Tensor]], list[Tensor]] | None, float]] = {
        "merge": (merge, flat, list, problem.operations),
        "one sequence": (_sdpa(flash), one, None, causal),
        "padded": (_sdpa(flash), rows, onto_tree, problem.operations),
        "cuDNN": (_sdpa(cudnn), rows, onto_tree, problem.operations),
        "flex": (_flex(problem, dry), one, lambda found: [x[0].transpose(0, 1) for x in found], problem.operations),
    }
    for name, (attend, inputs, of_tree, operations) in kinds.items():
        try:
            _measure(figures, f"{load}: {name}", attend, inputs, operations, dry)
            if of_tree is not None:
                found = of_tree(_results(attend, inputs))
                errors = [float((x.double() - y).norm() / y.norm()) for x, y in zip(found, reference, strict=True)]
                parts = dict(zip(("of the output", "of query", "of key", "of value"), errors, strict=True))
                figures.put(f"{load}: error of {name}", max(errors), **parts)
        except RuntimeError as error:  # A kernel that doesn't take these tensors, or memory that ran out.
            figures.miss(f"{load}: {name}", str(error)[:300])


def _measure(figures: Figures, name: str, attend: Attend, inputs: list[Tensor], operations: float, dry: bool) -> None:
    where, rounds = inputs[0].device, 1 if dry else 10
    reset_peak(where)
    with torch.no_grad():
        taken = seconds(where, lambda: attend(*inputs[:3]), rounds=rounds, warm=2)
    figures.put(f"{name} forward", operations / taken / 1e12, ms=taken * 1e3)
    both = seconds(where, lambda: _results(attend, inputs), rounds=rounds, warm=2)
    figures.put(f"{name} backward", 2.5 * operations / (both - taken) / 1e12, ms=(both - taken) * 1e3, peak=peak(where))


def _results(attend: Attend, inputs: list[Tensor]) -> list[Tensor]:
    """Output and gradients."""
    leaves = [x.detach().requires_grad_() for x in inputs[:3]]
    out = attend(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, inputs[3])]


def _sdpa(backend: SDPBackend) -> Attend:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    return attend


def _flex(problem: Problem, dry: bool) -> Attend:
    """FlexAttention over the row: what stands below a node stands right behind it, so a key is seen up to `until`."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    until, compiled = problem.until, {}

    def seen(batch: Any, head: Any, row: Tensor, column: Tensor) -> Tensor:
        return (column <= row) & (row < until[column])

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if dry:  # A CPU has no backward pass of it.
            mask = seen(None, None, *torch.meshgrid(*[torch.arange(problem.tokens)] * 2, indexing="ij"))
            return scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
        if not compiled:
            make = torch.compile(create_block_mask)
            compiled["mask"] = make(seen, None, None, problem.tokens, problem.tokens, device=problem.where)
            compiled["attend"] = torch.compile(flex_attention, dynamic=False)
        found: Tensor = compiled["attend"](query, key, value, block_mask=compiled["mask"], enable_gqa=True)
        return found

    return attend
