"""Images: what the engine samples with them is what the model itself says of the whole sequence."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers

from toolrl.errors import EngineError
from toolrl.types import Generation, MediaInput, Sampling

IMAGE, VOCABULARY = 290, 300
TEXT = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512,
    "initializer_range": 0.2, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
ROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
IDS = {"image_token_id": IMAGE, "video_token_id": 291, "vision_start_token_id": 292, "vision_end_token_id": 293}
PATCH = {"patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, "in_channels": 3}


def qwen2_5_vl() -> Any:
    vision = {
        **PATCH, "depth": 2, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32,
        "window_size": 16, "fullatt_block_indexes": [1],
    }  # fmt: skip
    text = {**TEXT, "rope_parameters": ROPE}
    return transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **IDS)


def qwen3_vl() -> Any:
    vision = {
        **PATCH, "depth": 2, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32,
        "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64,
    }  # fmt: skip
    text = {**TEXT, "rope_parameters": {**ROPE, "mrope_interleaved": True}}
    return transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **IDS)


def llava() -> Any:
    vision = {
        "model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 16, "patch_size": 4, "projection_dim": 16,
    }  # fmt: skip
    text = {"model_type": "llama", **TEXT}
    return transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_index=IMAGE)


MODELS = {"qwen2_5_vl": qwen2_5_vl, "qwen3_vl": qwen3_vl, "llava": llava}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    """A vision-language model of the real architecture, with random weights."""
    torch.manual_seed(0)
    module = transformers.AutoModelForImageTextToText.from_config(MODELS[request.param]())
    return module.eval()


def picture(model: Any, start: int, seed: int, size: tuple[int, int] = (4, 6)) -> MediaInput:
    """A random picture of `size` patches, whose tokens begin at `start`."""
    generator = torch.Generator().manual_seed(seed)
    if "image_grid_thw" in model.forward.__code__.co_varnames or hasattr(model.base_model, "get_rope_index"):
        patches, merged = size[0] * size[1], size[0] * size[1] // 4
        tensors = {
            "pixel_values": torch.randn(patches, 3 * 2 * 4 * 4, generator=generator),
            "image_grid_thw": torch.tensor([[1, *size]]),
        }
        types = {"mm_token_type_ids": (1,) * merged}
    else:
        merged = 16  # The class token is left out.
        tensors = {"pixel_values": torch.randn(1, 3, 16, 16, generator=generator)}
        types = {}
    return MediaInput("image", (start, start + merged), f"{seed:032x}", tensors, types)


def prompt_of(words: Sequence[Any], model: Any) -> tuple[list[int], list[MediaInput]]:
    """Ids and pictures of a prompt: numbers are tokens, pairs (seed, size) pictures."""
    ids: list[int] = []
    media: list[MediaInput] = []
    for word in words:
        if isinstance(word, int):
            ids.append(word)
            continue
        item = picture(model, len(ids), *word)
        ids += [IMAGE] * (item.span[1] - item.span[0])
        media.append(item)
    return ids, media


def logprobs_of(model: Any, ids: Sequence[int], media: Sequence[MediaInput], count: int) -> list[float]:
    """What a plain forward pass over everything says of the last `count` tokens."""
    ids_1T = torch.tensor([list(ids)])
    given: dict[str, Any] = {}
    for item in media:
        for name, value in item.tensors.items():
            given[name] = torch.cat([given[name], value]) if name in given else value
        for name, values in item.token_types.items():
            given.setdefault(name, torch.zeros_like(ids_1T))[0, slice(*item.span)] = torch.tensor(values)
    with torch.no_grad():
        logits = model(input_ids=ids_1T, attention_mask=torch.ones_like(ids_1T), use_cache=False, **given).logits[0]
    scores = torch.log_softmax(logits[-count - 1 : -1].float(), dim=-1)
    return scores.gather(1, ids_1T[0, -count:, None])[:, 0].tolist()


SETTINGS = Sampling(max_new_tokens=6, temperature=1.0, seed=5)
ONE = [5, 6, (1, (4, 6)), 7, 8]
OTHER = [5, 6, (2, (4, 6)), 7, 8]
TWO = [5, (1, (8, 12)), 9, (3, (2, 8)), 10]
PLAIN = [5, 6, 7, 8, 9, 10, 11]


def check(model: Any, prompt: list[int], media: list[MediaInput], generation: Generation) -> None:
    ids = [*prompt, *generation.ids]
    assert generation.logprobs == pytest.approx(logprobs_of(model, ids, media, len(generation.ids)), abs=2e-4)


@pytest.mark.parametrize("options", [{}, {"prefill_tokens": 16}, {"max_batch": 1}])
async def test_samples_have_the_models_own_probabilities(model: Any, engine: Any, options: dict[str, Any]) -> None:
    """With and without pictures in one batch, two with the same ids and other pictures among them; in two turns."""

    async with engine(model, **options) as running:
        prompts = [prompt_of(words, model) for words in (ONE, OTHER, TWO, PLAIN, ONE)]
        first = await asyncio.gather(
            *(running.generate(ids, SETTINGS, session=str(n), media=media) for n, (ids, media) in enumerate(prompts))
        )
        for (ids, media), generation in zip(prompts, first, strict=True):
            check(model, ids, media, generation)
        assert first[0].logprobs != first[1].logprobs
        later = []
        for (ids, media), generation in zip(prompts, first, strict=True):
            more = [*ids, *generation.ids, 12]
            item = picture(model, len(more), 7, (4, 4))
            later.append(([*more, *[IMAGE] * (item.span[1] - item.span[0]), 13], [*media, item]))
        second = await asyncio.gather(
            *(running.generate(ids, SETTINGS, session=str(n), media=media) for n, (ids, media) in enumerate(later))
        )
        for (ids, media), generation in zip(later, second, strict=True):
            check(model, ids, media, generation)
        assert second[3].cached >= len(PLAIN)


async def test_the_same_picture_is_computed_once(model: Any, engine: Any) -> None:
    async with engine(model) as running:
        ids, media = prompt_of(ONE, model)
        requests = [running.generate(ids, SETTINGS, session=str(n), media=media) for n in range(4)]
        await asyncio.gather(*requests)
        assert running._started().batch.prefilled < 2 * len(ids)
        other, pictures = prompt_of(OTHER, model)
        await running.generate(other, SETTINGS, session="other", media=pictures)
        assert running._started().batch.prefilled >= 2 * len(ids) - 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_placeholder_is_never_sampled(model: Any, engine: Any, temperature: float) -> None:
    async with engine(model) as running:
        head = model.get_output_embeddings().weight
        before = head.detach().clone()
        with torch.no_grad():
            head[IMAGE] = head.mean(0) * 0 + 100.0 * head[3]
            head[3] = 0.0
        try:
            await running.update_weights(running._weights, 1)
            for seed in range(8):
                sampling = Sampling(max_new_tokens=16, temperature=temperature, seed=seed)
                generation = await running.generate(PLAIN, sampling, session=f"{seed}")
                assert IMAGE not in generation.ids
        finally:
            with torch.no_grad():
                head.copy_(before)


async def test_pictures_for_a_model_of_text_are_refused(build: Any, engine: Any, model: Any) -> None:
    text = build(transformers.Qwen3Config(**TEXT))
    async with engine(text) as running:
        ids, media = prompt_of(ONE, model)
        with pytest.raises(EngineError, match="the model takes none"):
            await running.generate(ids, SETTINGS, session="a", media=media)
        assert (await running.generate(PLAIN, SETTINGS, session="a")).ids
