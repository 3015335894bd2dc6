"""On-policy distillation: what teachers make of the tokens that the policy sampled.

The reverse KL divergence of a token, given what stands before it, is the mean of log policy − log teacher over the
policy's own tokens, and its gradient that of (log policy − log teacher) · ∇ log policy. So it is lowered

    advantage   by a policy gradient with A = reward_weight · A + coef · (log teacher − log policy as sampled), as in
                Thinking Machines' On-Policy Distillation (2025) and slime; the next token's divergence counts nothing
    loss        by a term of the loss, with the gradient and the weights of the KL term (`objective.loss`)

With `clip` c a token's log teacher − log policy is held between −c and c, as rllm and verl can. The teacher's part is
compared within no group, and divided by no deviation. Teachers are asked at temperature 1, as by
slime, verl and tinker-cookbook; the policy is the one at `rollout.temperature`, which is what learns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from toolrl.types import Group
from toolrl_plugin_torch.algorithm import DistillationConfig
from toolrl_plugin_torch.batch import Sample


def taught(sample: Sample, settings: DistillationConfig) -> Sample:
    """The sample with the advantages that rewards and, with `kl_as: advantage`, its teacher give it. Without a teacher
    the rewards' part alone."""
    advantages = [settings.reward_weight * value if value else 0.0 for value in sample.advantages]
    if sample.teacher_logprobs is not None and settings.kl_as == "advantage":
        rows = zip(advantages, sample.teacher_logprobs, sample.logprobs, sample.loss_mask, strict=True)
        most = settings.clip or math.inf
        advantages = [
            it + settings.coef * min(max(teacher - own, -most), most) if bit else 0.0 for it, teacher, own, bit in rows
        ]
    return replace(sample, advantages=advantages)


def distillation_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Mean and maximum of log policy − log teacher over the sampled tokens that teachers scored, the policy as it
    sampled them; the mean estimates the reverse KL divergence."""
    found: list[float] = []
    for episode in (episode for group in groups for episode in group.scored):
        for it in episode.trajectories:
            if it.trained and it.teacher_logprobs is not None:
                rows = zip(it.logprobs, it.teacher_logprobs, it.loss_mask, strict=True)
                found += [own - teacher for own, teacher, bit in rows if bit]
    return {"distillation/kl": sum(found) / len(found), "distillation/kl_max": max(found)} if found else {}
