"""Seconds that a step may take, as a range: arithmetic over published speeds, not a measurement.

A decoding step reads all weights and the cache of its episodes once. An update makes two operations for each token and
weight forward and four backward (two where the weights are frozen), and two more where layers are computed again. Tools
and rewards aren't counted.
"""

from __future__ import annotations

from toolrl_plugin_torch.plan.memory import Setting

_LENGTHS = (0.25, 1.0)
"""Of the tokens that an episode may sample: so many are taken to be sampled, at the low end and at the high one."""
_BANDWIDTH = (0.7, 0.25)
"""Of the memory's bandwidth that decoding reaches."""
_HOST = (0.001, 0.01)
"""Seconds of a decoding step on the CPU."""
_FLOPS = (0.4, 0.1)
"""Of the GPU's operations that an update reaches."""
_LINK = (50e9, 20e9)
"""Bytes a second between GPU and host."""


def step_seconds(setting: Setting) -> dict[str, tuple[float, float]]:
    """By part of a step, the least and the most; empty where the GPU's speed isn't known."""
    gpu, sizes, config = setting.gpu, setting.sizes, setting.config
    if gpu.flops is None or gpu.bandwidth is None:
        return {}
    passes = 2 if config.model.lora is not None else 4
    passes += 4 if setting.checkpointing else 2
    width = setting.sizes.text.num_hidden_layers * getattr(setting.sizes.text, "hidden_size", 0)
    moved = 24 * sizes.trained if "optimizer" in config.trainer.offload else 0
    batch = min(setting.episodes, config.rollout.concurrency, getattr(setting.engine, "max_batch", setting.episodes))
    rollout, update, handover = [], [], []
    for end, share in enumerate(_LENGTHS):
        length = max(setting.sampled * share, 1)
        tokens = setting.episodes * length
        read = 2 * sizes.active + batch * length / 2 * sizes.token
        rollout.append(tokens / batch * (read / (_BANDWIDTH[end] * gpu.bandwidth) + _HOST[end]))
        work = tokens * passes * (sizes.active + width * length)
        update.append(work / (_FLOPS[end] * gpu.flops) + moved / _LINK[end])
        handover.append(sizes.weights / _LINK[end])
    found = {"rollout": tuple(rollout), "update": tuple(update), "hand-over": tuple(handover)}
    return {name: (low, high) for name, (low, high) in found.items()}
