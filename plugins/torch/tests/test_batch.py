"""Packing and splitting: nothing lost, nothing doubled, never over the budget, always the same."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.types import MediaInput
from toolrl_plugin_torch.batch import Sample, episode_samples, pack, supervised_sample

masks = st.lists(st.integers(0, 1), min_size=1, max_size=30).map(lambda mask: [0, *mask])


def _sample(mask: list[int], number: int = 0) -> Sample:
    ids = [100 * number + position + 1 for position in range(len(mask))]
    return Sample(ids, mask, [-0.25 * sampled for sampled in mask], [float(number + 1) * sampled for sampled in mask])


def _last(mask: list[int]) -> int:
    """Tokens up to the last trained one."""
    return max((position + 1 for position, trained in enumerate(mask) if trained), default=0)


@settings(max_examples=200, deadline=None)
@given(st.lists(masks, max_size=20), st.integers(1, 120))
def test_every_sample_once_under_the_budget(all_masks: list[list[int]], budget: int) -> None:
    samples = [_sample(mask, number) for number, mask in enumerate(all_masks)]
    batches = pack(samples, budget, pad_id=7)
    seen = [index for batch in batches for index in batch.samples]
    assert sorted(seen) == [index for index, mask in enumerate(all_masks) if any(mask)]
    for batch in batches:
        assert batch.positions <= budget or len(batch.samples) == 1
        assert batch.input_ids_BT.shape[1] == max(_last(all_masks[index]) for index in batch.samples)
        for row, index in enumerate(batch.samples):
            length, sample = _last(all_masks[index]), samples[index]
            assert batch.input_ids_BT[row, :length].tolist() == list(sample.ids)[:length]
            assert batch.loss_mask_BT[row, :length].int().tolist() == list(sample.loss_mask)[:length]
            assert batch.rollout_logprobs_BT[row, :length].tolist() == list(sample.logprobs)[:length]
            assert batch.advantages_BT[row, :length].tolist() == list(sample.advantages)[:length]
            assert batch.attention_mask_BT[row].tolist() == [1] * length + [0] * (batch.input_ids_BT.shape[1] - length)
            assert (batch.input_ids_BT[row, length:] == 7).all()
            assert not batch.loss_mask_BT[row, length:].any()
            assert not batch.advantages_BT[row, length:].any()
    assert sum(int(batch.loss_mask_BT.sum()) for batch in batches) == sum(map(sum, all_masks))


def picture(start: int, end: int, value: float) -> MediaInput:
    tensors = {"pixel_values": torch.full((2, 3), value), "image_grid_thw": torch.tensor([[1, 1, 2]])}
    return MediaInput("image", (start, end), str(value), tensors, {"mm_token_type_ids": (1,) * (end - start)})


def test_images_go_with_their_rows() -> None:
    def sample(length: int, *media: MediaInput) -> Sample:
        mask = [0] * (length - 3) + [1, 0, 0]
        return Sample(list(range(length)), mask, [0.0] * length, [1.0] * length, media)

    samples = [sample(6, picture(1, 3, 1.0)), sample(9, picture(0, 2, 2.0), picture(3, 4, 3.0), picture(8, 9, 4.0))]
    (batch,) = pack([*samples, sample(5)], 100)
    assert batch.samples == (1, 0, 2)
    # The last image comes after all that is trained, and is cut off with it.
    assert batch.media["pixel_values"][:, 0].tolist() == [2.0, 2.0, 3.0, 3.0, 1.0, 1.0]
    assert batch.media["image_grid_thw"].shape == (3, 3)
    assert batch.media["mm_token_type_ids"].tolist() == [[1, 1, 0, 1, 0, 0, 0], [0, 1, 1, 0, 0, 0, 0], [0] * 7]
    assert batch.to("cpu").media.keys() == batch.media.keys()
    (plain,) = pack([sample(5)], 100)
    assert plain.media == {}


def test_a_sample_is_its_episodes(make_episode: Any) -> None:
    image = picture(0, 1, 1.0)
    (sample,) = episode_samples(make_episode((0, 1, 0, 1), media=(image,)), 0.5)
    assert list(sample.ids) == [1, 2, 3, 4]
    assert list(sample.advantages) == [0.0, 0.5, 0.0, 0.5]
    assert list(sample.logprobs) == [0.0, -0.5, 0.0, -0.5]
    assert (sample.trained_tokens, sample.media) == (2, (image,))
    assert list(supervised_sample([1, 2, 3], [0, 1, 0]).advantages) == [0.0, 1.0, 0.0]
