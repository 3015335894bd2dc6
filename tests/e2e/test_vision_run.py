"""Images from a message to the loss: a small vision-language model of the real architecture, with random weights.

A task's image and images that a tool gives back reach engine and trainer; what is trained is what was sampled, image
tokens included, and both agree on its probabilities.
"""

from __future__ import annotations

import asyncio
import json
import random
import runpy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")
pytest.importorskip("toolrl_plugin_transformers")

from toolrl.errors import ChatFormatError, DataError  # noqa: E402
from toolrl.protocols import BuildContext  # noqa: E402
from toolrl.rollouts.environment import Environment, Limits, NamedReward  # noqa: E402
from toolrl.rollouts.runner import Runner  # noqa: E402
from toolrl.runs.records import episode_from_json, episode_to_json  # noqa: E402
from toolrl.tools import tool  # noqa: E402
from toolrl.tools.toolbox import ToolBox, ToolEntry  # noqa: E402
from toolrl.tools.toolset import as_toolset  # noqa: E402
from toolrl.types import Episode, Media, Message, ParsedTurn, Score, Task, ToolCall, ToolResult  # noqa: E402
from toolrl_plugin_chat.media import parts  # noqa: E402
from toolrl_plugin_chat.template import TemplateFormat  # noqa: E402
from toolrl_plugin_torch.algorithm import AlgorithmConfig  # noqa: E402
from toolrl_plugin_torch.fine_tuning.demonstrations import encode_task, from_episodes  # noqa: E402
from toolrl_plugin_torch.options import ModelConfig, SftConfig, TrainerConfig  # noqa: E402
from toolrl_plugin_torch.policy import PolicyModel, PolicyWeights, load_policy  # noqa: E402
from toolrl_plugin_torch.trainer import PolicyTrainer, SupervisedTrainer  # noqa: E402

SMALL: dict[str, Any] = runpy.run_path(
    str(Path(__file__).resolve().parents[2] / "docs" / "examples" / "common" / "small_models.py")
)
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}{% if part.type == \
'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}\
<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def make_tokenizer() -> Any:
    return SMALL["phrase_tokenizer"]((), TEMPLATE, controls=(*SMALL["CONTROLS"], *SMALL["VISION"]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder, with tokenizer and image processor."""
    tokenizer = make_tokenizer()
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    ids = dict(zip(names, tokenizer.convert_tokens_to_ids(list(SMALL["VISION"])), strict=True))
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0, "mrope_interleaved": True}
    text = {
        "vocab_size": len(tokenizer) + 8, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 2048,
        "initializer_range": 0.2, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
        "rope_parameters": rope,
    }  # fmt: skip
    vision = {
        "patch_size": 14, "depth": 2, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2,
        "out_hidden_size": 32, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64,
    }  # fmt: skip
    torch.manual_seed(0)
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **ids)
    folder: Path = tmp_path_factory.mktemp("models") / "qwen3_vl"
    SMALL["save"](folder, tokenizer, transformers.Qwen3VLForConditionalGeneration(config))
    return folder


@pytest.fixture
def policy(folder: Path) -> PolicyModel:
    return load_policy(ModelConfig(path=str(folder)), str(folder), torch.device("cpu"))


def chat_of(policy: PolicyModel) -> TemplateFormat:
    return TemplateFormat(None, BuildContext("template", tokenizer=policy.tokenizer, processor=policy.processor))


def painted(red: int, width: int = 60, height: int = 60) -> Any:
    return Image.new("RGB", (width, height), (red, 10, 200))


def asked(*media: Any, text: str = "What is it?") -> Message:
    return Message("user", text, media=tuple(Media("image", item) for item in media))


# The chat format.


def test_an_image_is_as_many_tokens_as_its_size_says_where_the_text_says(policy: PolicyModel) -> None:
    chat = chat_of(policy)
    rendered = chat.open([asked(painted(1), painted(2, 112, 56), text="a<image>b<image>c")], ())
    pad = policy.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    for image, count in zip(rendered.media, (4, 8), strict=True):
        assert image.span[1] - image.span[0] == int(image.tensors["image_grid_thw"].prod()) // 4 == count
        assert set(rendered.ids[slice(*image.span)]) == {pad}
    assert rendered.ids.count(pad) == 12
    text = policy.tokenizer.decode(rendered.ids).replace("<|image_pad|>", "")
    assert "a<|vision_start|><|vision_end|>b<|vision_start|><|vision_end|>c" in text
    with pytest.raises(ChatFormatError, match="says `<image>` 2 times, and has 1"):
        chat.open([asked(painted(1), text="<image><image>")], ())


def test_a_text_that_spells_a_placeholder_is_a_text(policy: PolicyModel) -> None:
    chat = chat_of(policy)
    pad = policy.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert pad not in chat.open([asked(text="<|image_pad|>")], ()).ids
    assert chat.open([asked(painted(1), text="<|image_pad|>")], ()).ids.count(pad) == 4
    assert pad not in chat.inline("<|image_pad|>")


def test_what_is_no_image_is_told(policy: PolicyModel, tmp_path: Path) -> None:
    chat = chat_of(policy)
    for data in (b"nothing", str(tmp_path / "missing.png"), 7, {"bytes": None}):
        with pytest.raises(ChatFormatError, match="an image can't be read"):
            chat.open([asked(data)], ())
    with pytest.raises(ChatFormatError, match="10 by 4000 pixels"):
        chat.open([asked(painted(1, 10, 4000))], ())
    with pytest.raises(ChatFormatError, match="a message of role system holds a image"):
        chat.open([Message("system", "x", media=(Media("image", painted(1)),)), asked()], ())


def test_a_whole_processor_makes_the_same_ids() -> None:
    """Of the model family whose processor needs no torchvision."""
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    image_processor = transformers.CLIPImageProcessor(
        size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}, do_center_crop=True
    )
    processor = transformers.LlavaProcessor(
        image_processor, tokenizer, patch_size=14, vision_feature_select_strategy="default", image_token="<image>",
        num_additional_image_tokens=1,
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>")
    chat = TemplateFormat(None, BuildContext("template", tokenizer=tokenizer, processor=processor))
    pictures = [painted(1), painted(2, 90, 30)]
    rendered = chat.open([asked(*pictures, text="a b")], ())
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": parts("a b", [Media("image", p) for p in pictures])}],
        tokenize=False,
        add_generation_prompt=True,
    )
    wanted = processor(text=[text], images=pictures, return_tensors="pt", add_special_tokens=False)
    assert list(rendered.ids) == wanted["input_ids"][0].tolist()
    pixels = torch.cat([item.tensors["pixel_values"] for item in rendered.media])
    assert pixels.equal(wanted["pixel_values"])


# The whole way.


@tool
def see(seed: int = 0) -> ToolResult:
    """Looks again."""
    return ToolResult("Look:", media=(Media("image", painted(seed % 200, 56 + 28 * (seed % 3), 56)),))


class SeesOnce:
    """A parser: the first two turns call the tool whatever they say, the third is final."""

    def stops(self, turn_text: str) -> tuple[str, ...]:
        return ()

    def parse(self, text: str, **_: Any) -> ParsedTurn:
        items = (ToolCall("see", {"seed": len(text)}, span=(0, len(text))),) if text and ord(text[0]) % 2 else ()
        return ParsedTurn(items, content="", status="calls" if items else "final")

    def render_results(self, records: Any) -> list[Message]:
        return [
            Message("tool", r.result.text, media=r.result.media, tool_call_id=r.call.id, name=r.call.name)
            for r in records
        ]


class Chance:
    """A reward that differs between episodes."""

    async def score(self, episode: Episode) -> Score:
        return Score(random.Random(episode.id).random())


def roll(policy: PolicyModel, groups: int = 2) -> list[Any]:
    from toolrl_plugin_transformers.engine import TransformersEngine

    async def work() -> list[Any]:
        chat = chat_of(policy)
        engine = TransformersEngine(
            None, BuildContext("transformers", tokenizer=policy.tokenizer, weights=PolicyWeights(policy, 0))
        )
        box = ToolBox([ToolEntry("see", as_toolset(see, None, BuildContext("see")))])
        environment = Environment("default", SeesOnce(), chat, box, [NamedReward("chance", Chance())], max_turns=3)
        await engine.start()
        await box.start()
        try:
            tasks = [Task(f"t{n}", (asked(painted(40 * n, 56 + 28 * n, 56)),)) for n in range(groups)]
            runner = Runner(engine, {"default": environment}, max_error_rate=0.0)
            return await runner.run(tasks, 4, Limits(8, 1900), round_id="train-0")
        finally:
            await box.stop()
            await engine.stop()

    return asyncio.run(work())


def test_what_is_trained_is_what_was_sampled(policy: PolicyModel, tmp_path: Path) -> None:
    groups = roll(policy)
    episodes = [episode for group in groups for episode in group.episodes]
    pad = policy.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert [episode.failure for episode in episodes if episode.failure] == []
    assert any(len(episode.media) > 1 for episode in episodes), "no tool gave an image"
    for episode in episodes:
        spans = [item.span for item in episode.media]
        assert spans == sorted(spans)
        assert sum(end - start for start, end in spans) == episode.ids.count(pad)
        for start, end in spans:
            assert set(episode.ids[start:end]) == {pad}
            assert not any(episode.loss_mask[start:end])
    changed = changed_by_an_update(policy, groups, tmp_path)
    assert any("lm_head" in name or "embed_tokens" in name for name in changed)


def changed_by_an_update(policy: PolicyModel, groups: list[Any], folder: Path) -> set[str]:
    """Which weights are others after it; trainer and engine agree, and the vision tower is among them."""
    settings = TrainerConfig(steps=2, learning_rate=1e-2, tokens_per_microbatch=4000)
    algorithm = AlgorithmConfig(preset="grpo", kl_coef=0.01)
    trainer = PolicyTrainer(policy, settings, algorithm, folder, temperature=1.0, longest=24)
    before = {name: value.detach().clone() for name, value in policy.model.named_parameters()}
    assert trainer.update(groups)["logprob_mismatch/max"] < 1e-3
    changed = {name for name, value in policy.model.named_parameters() if not value.equal(before[name])}
    assert any("visual" in name for name in changed), "no gradient reached the vision tower"
    return changed


def test_an_adapter_is_trained_on_images_too(folder: Path, tmp_path: Path) -> None:
    """Engine and trainer agree, the vision tower's layers are adapted, and checkpoint and merged folder come back."""
    pytest.importorskip("peft")

    def load(path: Path, lora: dict[str, int] | None) -> PolicyModel:
        return load_policy(ModelConfig(path=str(path), lora=lora), str(path), torch.device("cpu"))

    policy = load(folder, {"rank": 4})
    groups = roll(policy, groups=2)
    assert all(".lora_" in name for name in changed_by_an_update(policy, groups, tmp_path))
    episode = groups[0].episodes[0]
    inputs = batch_inputs(episode)
    wanted = policy.model(**inputs).logits
    assert policy.adapter is not None
    saved, merged = tmp_path / "saved", tmp_path / "merged"
    saved.mkdir()
    policy.adapter.save_pretrained(saved)
    policy.save_whole(merged)
    assert torch.allclose(load(saved, {"rank": 4}).model(**inputs).logits, wanted, atol=1e-5)
    assert torch.allclose(load(merged, None).model(**inputs).logits, wanted, atol=1e-3)


def batch_inputs(episode: Any) -> dict[str, Any]:
    """What the trainer gives a model for one episode."""
    from toolrl_plugin_torch.batch import episode_samples, pack

    (batch,) = pack(episode_samples(episode, 0.0), 100_000, pad_id=0, share=False)
    return {"input_ids": batch.input_ids_BT, "attention_mask": batch.attention_mask_BT, **batch.media}


def test_demonstrations_with_images_are_learned(policy: PolicyModel, tmp_path: Path) -> None:
    messages = (asked(painted(1)), Message("assistant", "blue"), asked(painted(99)), Message("assistant", "pink"))
    environment = Environment("default", SeesOnce(), chat_of(policy), ToolBox([]))
    item = asyncio.run(encode_task(Task("t", messages), {"default": environment}))
    assert len(item.media) == 2
    pad = policy.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert all(set(item.ids[slice(*image.span)]) == {pad} for image in item.media)
    trainer = SupervisedTrainer(policy, SftConfig(data="jsonl", steps=30, learning_rate=1e-2), tmp_path)
    losses = [trainer.update([item])["loss"] for _ in range(30)]
    assert losses[-1] < losses[0] / 2


def test_stored_episodes_say_that_their_images_are_gone(policy: PolicyModel) -> None:
    (group,) = roll(policy, groups=1)
    episode = group.episodes[0]
    stored = episode_from_json(json.loads(json.dumps(episode_to_json(episode))))
    assert [item.span for item in stored.media] == [item.span for item in episode.media]
    assert from_episodes([episode], min_reward=-1.0)[0].media == episode.media
    with pytest.raises(DataError, match="holds images, which the run folder didn't keep"):
        from_episodes([stored], min_reward=-1.0)


def test_a_checkpoint_holds_the_processor(policy: PolicyModel, tmp_path: Path) -> None:
    weights = PolicyWeights(policy, 0, tmp_path)
    again = load_policy(ModelConfig(path=str(weights.path())), str(weights.path()), torch.device("cpu"))
    assert type(again.processor) is type(policy.processor)
    assert chat_of(again).open([asked(painted(1))], ()).ids == chat_of(policy).open([asked(painted(1))], ()).ids
    weights.close()
