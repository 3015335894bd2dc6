"""A run that samples truncated and trains on exactly what it sampled from."""

from __future__ import annotations

from typing import Any

from toolrl_plugin_torch.sampling_masks import decode

SETTINGS = {
    "model": {"path": "runs/warm"},
    "rollout": {"top_p": 0.9, "min_p": 0.01, "temperature": 0.8, "keep_sampling_masks": True},
    "evaluation": {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "tasks": 2},
    "algorithm": {"preset": "grpo", "kl_coef": 0.01, "importance": {}},
    "trainer": {"steps": 2, "save_every": 0, "updates_per_step": 2, "learning_rate": 1e-3},
    "deterministic": True,
}


def test_truncated_sampling_is_trained_on_exactly(own_place: Any) -> None:
    done = own_place.toolrl("train", own_place.config(SETTINGS), "--json")
    assert done.returncode == 0, done.stderr
    assert "the policy that samples isn't the one" not in done.stderr
    run = own_place.run("grpo")
    lines = run.metrics_lines("train")
    assert [line.step for line in lines] == [1, 2]
    assert all(0 < line.metrics["logprob_mismatch/max"] <= 1e-5 for line in lines if "loss" in line.metrics)
    assert any("loss" in line.metrics for line in lines)
    kept = []
    for item in run.episodes():
        it = item.episode.main
        assert (it.sampling_masks is None) == (item.kind == "eval")
        if it.sampling_masks is not None:
            sampled = [token for token, bit in zip(it.ids, it.loss_mask, strict=True) if bit]
            kept += decode(it.sampling_masks, sampled).counts_N.tolist()
    assert min(kept) == 1
    assert max(kept) > 1
