"""A server that answers as SGLang's documentation says its own does, over a transformers model: `/generate` with ids
and log-probabilities, weights from a folder. No SGLang is in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from vllm_help import listening

MODEL = "tiny"
ENDS = 259
"""Id at which this server's model ends a turn by itself."""


class SglangServer:
    """Serves `module`; what it was asked is in `asked`."""

    def __init__(self, module: Any, tokenizer: Any, *, length: int = 256) -> None:
        self.module, self.tokenizer, self.length = module, tokenizer, length
        self.version = "default"
        self.asked: list[tuple[str, Any]] = []
        self.running = 0
        self.takes_weights = True
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.path, body))
        if request.path == "/v1/models":
            return web.json_response({"object": "list", "data": [{"id": MODEL, "max_model_len": self.length}]})
        if request.path == "/generate":
            return await self._generate(body)
        if request.path == "/update_weights_from_disk":
            return self._load(body)
        return web.Response(status=404)

    def _load(self, body: Any) -> web.Response:
        import transformers

        assert not self.running, "weights are replaced under a request"
        if not self.takes_weights:
            return web.json_response(
                {"success": False, "message": "shape mismatch", "num_paused_requests": 0}, status=400
            )
        self.module = transformers.AutoModelForCausalLM.from_pretrained(body["model_path"]).eval()
        self.version = body["weight_version"]
        return web.json_response(
            {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
        )

    def logits(self, ids: list[int]) -> Any:
        import torch

        with torch.no_grad():
            return self.module(torch.tensor([ids]), use_cache=False).logits[0].float()

    async def _generate(self, body: Any) -> web.Response:
        import torch

        prompt, given = body["input_ids"], body["sampling_params"]
        if len(prompt) >= self.length:
            error = {
                "error": {"message": f"The input ({len(prompt)} tokens) is longer than the model's context length"}
            }
            return web.json_response(error, status=400)
        self.running += 1
        chance = torch.Generator().manual_seed(given.get("sampling_seed", 0))
        entries: list[list[Any]] = []
        reason: dict[str, Any] | None = None
        try:
            while reason is None:
                await asyncio.sleep(0.001)
                ids = [entry[1] for entry in entries]
                entries.append(self._step(self.logits([*prompt, *ids])[-1], given, chance))
                reason = self._finished([entry[1] for entry in entries], given)
        finally:
            self.running -= 1
        told: dict[str, Any] = {
            "id": "r",
            "finish_reason": reason,
            "prompt_tokens": len(prompt),
            "completion_tokens": len(entries),
            "cached_tokens": 7,
            "weight_version": self.version,
            "output_token_logprobs": entries,
        }
        if body.get("logprob_start_len") == 0:
            table = self.logits(prompt).log_softmax(-1)
            told["input_token_logprobs"] = [
                [None, prompt[0], None],
                *([float(table[place, token]), token, None] for place, token in enumerate(prompt[1:])),
            ]
        ids = [entry[1] for entry in entries]
        return web.json_response({"text": self.tokenizer.decode(ids), "output_ids": ids, "meta_info": told})

    def _step(self, row: Any, given: Any, chance: Any) -> list[Any]:
        import torch

        greedy = given["temperature"] == 0
        scaled = row if greedy else row / given["temperature"]
        logprobs = scaled.log_softmax(-1)
        probabilities = logprobs.exp()
        if given.get("top_k", -1) > 0:
            floor = probabilities.topk(given["top_k"]).values[-1]
            probabilities = probabilities.where(probabilities >= floor, 0.0)
        token = int(row.argmax()) if greedy else int(torch.multinomial(probabilities, 1, generator=chance))
        return [float(logprobs[token]), token, None]

    def _finished(self, ids: list[int], given: Any) -> dict[str, Any] | None:
        if len(ids) >= given["max_new_tokens"]:
            return {"type": "length", "length": given["max_new_tokens"]}
        if not given.get("ignore_eos", False) and (ids[-1] in given.get("stop_token_ids", ()) or ids[-1] == ENDS):
            return {"type": "stop", "matched": ids[-1]}
        stops = given.get("stop", [])
        # It decodes as many of the last tokens as the tokenizer makes of the longest stop string, and one more.
        window = max((len(self.tokenizer.encode(stop, add_special_tokens=False)) for stop in stops), default=0) + 1
        tail = self.tokenizer.decode(ids[-window:])
        for stop in stops:
            if stop in tail:
                return {"type": "stop", "matched": stop}
        return None


@asynccontextmanager
async def serving(module: Any, tokenizer: Any, **settings: Any) -> AsyncIterator[SglangServer]:
    """`async with serving(module, tokenizer) as server:`, at `server.url`."""
    server = SglangServer(module, tokenizer, **settings)
    async with listening(server.handle, client_max_size=1 << 24) as server.url:
        yield server
