"""The section `algorithm`: the objective, as a published algorithm's preset and what is changed in it."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from toolrl.config.frame import Frame, OldNames
from toolrl.config.model import AlgorithmFrame, DistillationFrame

_GRPO: dict[str, Any] = {
    "baseline": "group_mean",
    "scale": "std",
    "surrogate": "clip",
    "ratio": "token",
    "credit": "episode",
    "loss_aggregation": "sequence_mean",
    "clip_low": 0.2,
    "clip_high": 0.2,
    "drop_flat_groups": False,
}
_REINFORCE = {**_GRPO, "scale": "advantage_std", "loss_aggregation": "token_mean"}
PRESETS: dict[str, dict[str, Any]] = {
    "grpo": _GRPO,  # arXiv 2402.03300
    "dr_grpo": {**_GRPO, "scale": "none", "loss_aggregation": "constant"},  # arXiv 2503.20783
    # arXiv 2503.14476; its overlong shaping is `overlong`.
    "dapo": {**_GRPO, "loss_aggregation": "token_mean", "clip_high": 0.28, "drop_flat_groups": True},
    # arXiv 2507.18071, clip ranges of section 5.1.
    "gspo": {**_GRPO, "ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
    # MiniMax-M1, arXiv 2506.13585; the ratio's bound of 5 is ScaleRL's, arXiv 2510.13786.
    "cispo": {**_GRPO, "surrogate": "cispo", "loss_aggregation": "token_mean", "clip_low": 1.0, "clip_high": 4.0},
    # arXiv 2402.14740
    "rloo": {**_GRPO, "baseline": "leave_one_out", "scale": "none", "loss_aggregation": "sequence_sum"},
    "reinforce_plus_plus": {**_REINFORCE, "baseline": "batch_mean"},  # arXiv 2501.03262
    "reinforce_plus_plus_baseline": _REINFORCE,  # the same, with the group's mean as baseline
    # arXiv 1707.06347, with a critic and advantages over turns.
    "ppo": {**_REINFORCE, "baseline": "critic", "credit": "turn"},
}
"""By name, what a published algorithm sets."""


class ImportanceConfig(Frame):
    """Weights for samples that another policy drew than the one that the update starts from: an engine whose kernels
    differ, or weights some versions old."""

    level: Literal["token", "sequence", "mean"] = Field(
        "token",
        description="Of the token, of the trajectory (a product over tokens), or the trajectory's geometric mean.",
    )
    mode: Literal["truncate", "reject"] = Field(
        "truncate", description="What lies above the cap is cut down to it, or dropped."
    )
    cap: float = Field(2.0, gt=1, allow_inf_nan=False, description="Greatest weight.")


class RejectionConfig(Frame):
    """Samples of another policy that are left out of the policy's loss: those that are far likelier, or far less
    likely, under the policy that the update starts from."""

    level: Literal["token", "sequence", "mean"] = Field(
        "mean",
        description="Tokens by themselves, or whole trajectories: by the product over their tokens, or its geometric "
        "mean.",
    )
    low: float = Field(0.5, ge=0, lt=1, description="What is less likely by more than this is left out.")
    high: float = Field(2.0, gt=1, allow_inf_nan=False, description="What is likelier by more than this is left out.")
    only_negative: bool = Field(
        False, description="Only tokens of negative advantage: what worked is learned however old it is."
    )


class OverlongConfig(Frame):
    """A penalty that grows over the last tokens before a length (DAPO, arXiv 2503.14476, equation 13)."""

    tokens: int = Field(ge=1, description="Episodes with so many sampled tokens or more get the whole penalty.")
    buffer: int = Field(ge=1, description="It begins so many tokens before that.")
    penalty: float = Field(1.0, gt=0, allow_inf_nan=False, description="Taken off the reward.")


class DifficultyConfig(Frame):
    """Tasks that are set aside by their pass rate: the mean of `filter_metric` over their last group. Where that is the
    reward, only groups of equal rewards are."""

    solved: float | None = Field(
        1.0, allow_inf_nan=False, description="Set aside from this pass rate on; null: no task for being too easy."
    )
    unsolved: float | None = Field(
        0.0, allow_inf_nan=False, description="Set aside down from this pass rate; null: no task for being too hard."
    )
    revisit: int = Field(
        10, ge=2, le=1000, description="In each epoch one in so many of the tasks that are set aside is sampled again."
    )


class CriticConfig(Frame):
    """A critic: a second model, as large as the policy, that learns what an episode will still earn."""

    level: Literal["turn", "token"] = Field(
        "turn",
        description="What has a value and an advantage, and is a step for discount and gae_lambda: each turn, or each "
        "sampled token.",
    )
    learning_rate: float = Field(1e-5, gt=0, allow_inf_nan=False, description="Constant.")
    gae_lambda: float = Field(
        0.95, ge=0, le=1, description="1 trusts rewards alone, 0 the critic's word for all but the next step."
    )
    value_clip: float | None = Field(
        0.2, gt=0, allow_inf_nan=False, description="How far a value may move in a step before its error is held."
    )
    warmup_steps: int = Field(
        0,
        ge=0,
        description="In the first so many steps only the critic learns; the policy's warm-up and schedule follow them.",
    )


class DistillationConfig(DistillationFrame, Frame):
    """On-policy distillation: teachers score the tokens that the policy sampled, and the reverse KL divergence
    KL(policy ‖ teacher) is lowered."""

    coef: float = Field(1.0, ge=0, allow_inf_nan=False, description="Weight of the reverse KL divergence.")
    kl_as: Literal["advantage", "loss"] = Field(
        "advantage",
        description="advantage: coef · (log teacher − log policy as sampled) is added to each token's advantage, which "
        "ratio, clip and importance apply to. loss: a term of the loss, estimated as that of `kl_coef`.",
    )
    clip: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="The most that |log teacher − log policy| of a token counts, against single tokens that it "
        "finds next to impossible; None takes it as it is, which alone is without bias.",
    )
    reward_weight: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Weight of the advantages by rewards; 0: the teacher alone. Needed where an environment has no "
        "teacher.",
    )


class ReferenceConfig(Frame):
    """The policy that the KL divergence is taken to; with this section it is there, and `kl` is measured, also where
    `kl_coef` is 0."""

    old_names: ClassVar[OldNames] = {"mixup": 1}

    sync_every: int | None = Field(
        None,
        ge=1,
        description="After so many steps each it becomes the policy; None: it stays the model at the start.",
    )


class AlgorithmConfig(AlgorithmFrame, Frame):
    """The objective. A preset gives defaults, each of which can be set by itself."""

    old_names: ClassVar[OldNames] = {"loss": "loss_aggregation", "proximal": "old_logprobs"}

    preset: Literal[
        "grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo"
    ] = Field("grpo", description="A published algorithm's defaults.")
    baseline: Literal["group_mean", "leave_one_out", "batch_mean", "critic"] = Field(
        "group_mean",
        description="What is taken off a reward: the mean of its group, that of the others of its group, that of all "
        "groups of the step, or what a critic expects.",
    )
    critic: CriticConfig | None = Field(None, description="With `baseline: critic`: how the critic learns.")
    scale: Literal["std", "batch_std", "advantage_std", "none"] = Field(
        "std",
        description="What the difference is divided by: the standard deviation of its group's rewards, that of all "
        "rewards of the step, that of all advantages of the step, or 1.",
    )
    credit: Literal["episode", "turn"] = Field(
        "episode",
        description="The tokens that earn the reward of a step, such as a tool's: all of the episode, or those of its "
        "turn and of earlier ones. What is given for the whole episode always goes to all.",
    )
    discount: float = Field(
        1.0, gt=0, le=1, description="With `credit: turn`: how much a turn earns of the next one's rewards."
    )
    overlong: OverlongConfig | None = Field(None, description="A penalty for episodes that are too long.")
    mask_truncated: bool = Field(
        False,
        description="Don't train on episodes that ran out of tokens or time; their rewards still count in the "
        "baseline.",
    )
    surrogate: Literal["clip", "cispo"] = Field(
        "clip",
        description="What a ratio outside of the clip range means: no gradient, or a bounded weight.",
    )
    ratio: Literal["token", "sequence"] = Field(
        "token", description="Of each token's probabilities, or the geometric mean over the trajectory."
    )
    loss_aggregation: Literal["token_mean", "sequence_mean", "sequence_sum", "constant"] = Field(
        "sequence_mean",
        description="How token losses are averaged: over all tokens; by sequence first; over sequences, tokens added "
        "up; or over sequences, divided by a constant length.",
    )
    clip_low: float = Field(0.2, ge=0, le=1, description="Ratios below 1 − this are clipped.")
    clip_high: float = Field(0.2, ge=0, allow_inf_nan=False, description="Ratios above 1 + this are clipped.")
    clip_dual: float | None = Field(
        None,
        gt=1,
        allow_inf_nan=False,
        description="With the surrogate `clip`: the most that a token of negative advantage counts, as its multiple.",
    )
    importance: ImportanceConfig | None = Field(
        None, description="Weigh samples by how likely they are now against when they were drawn."
    )
    rejection: RejectionConfig | None = Field(
        None,
        description="Leave out samples that the policy has moved away from, or that its engine computes otherwise.",
    )
    old_logprobs: Literal["recomputed", "sampled"] = Field(
        "recomputed",
        description="What ratios are taken to and clipped around: recomputed for the policy before the step's first "
        "update (decoupled from the one that sampled, which `importance` and `rejection` account for), or as sampled.",
    )
    kl_coef: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Weight of the KL divergence from the reference, the model at the start.",
    )
    kl_in: Literal["loss", "reward"] = Field(
        "loss",
        description="Where the divergence counts: as a term of the loss, or taken off the reward token by token.",
    )
    reference: ReferenceConfig | None = Field(
        None,
        description="`{}` measures `kl` with a `kl_coef` of 0 too; its settings let the reference follow the policy.",
    )
    kl_estimator: Literal["k1", "k2", "k3"] = Field(
        "k3", description="How the divergence is estimated; k1 needs kl_correction."
    )
    kl_correction: bool = Field(
        True,
        description="Weigh the KL term by policy over rollout and give it the divergence's gradient, without bias for "
        "stale samples too; false is GRPO as published.",
    )
    distillation: DistillationConfig | None = Field(None, description="Learn from teachers, token by token.")
    entropy_coef: float = Field(0.0, allow_inf_nan=False, description="Weight of an entropy bonus.")
    drop_flat_groups: bool = Field(False, description="Leave out groups whose filter_metric is equal in all episodes.")
    filter_metric: Literal["correct", "reward"] = Field(
        "correct",
        description="What dynamic_sampling and drop_flat_groups compare: whether the answer is correct, or the reward "
        "without `overlong`. Where no reward judges the answer, or the rewards are equal anyhow, the reward.",
    )

    difficulty: DifficultyConfig | None = Field(
        None,
        description="Set tasks aside that are always or never solved, and look at them again; `{}` takes the defaults.",
    )

    @property
    def has_reference(self) -> bool:
        """Whether a divergence from the reference is computed."""
        return bool(self.kl_coef) or self.reference is not None

    @property
    def loss_kl_coef(self) -> float:
        """Weight of the loss's KL term."""
        return self.kl_coef if self.kl_in == "loss" else 0.0

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("advantage") and data.get("overlong"):
            raise ValueError("overlong: an advantage estimator of a plugin sees the rewards without it; take out one")
        return {**PRESETS.get(str(data.get("preset", "grpo")), {}), **data}

    @model_validator(mode="after")
    def _fit(self) -> AlgorithmConfig:
        """Settings that mean nothing together."""
        self._check_critic()
        compared = self.distillation is None or self.distillation.reward_weight > 0
        if self.group_size < 2 and compared and not self.advantage and self.baseline in ("group_mean", "leave_one_out"):
            raise ValueError(f"group_size: 1 leaves a group nothing to compare; the baseline {self.baseline} needs 2")
        for name in ("drop_flat_groups", "dynamic_sampling"):
            if self.group_size < 2 and getattr(self, name):
                raise ValueError(f"{name}: the rewards of a group of one are always equal, so no group would be left")
        if self.baseline == "batch_mean" and self.scale == "std":
            raise ValueError(
                "scale: a group of equal rewards has the deviation 0, and with the baseline batch_mean its rewards "
                "would be divided by it; take batch_std, advantage_std or none"
            )
        if self.kl_coef and self.kl_estimator == "k1" and not self.kl_correction:
            raise ValueError("kl_estimator: k1 has no gradient without kl_correction; take k2 or k3, or correct it")
        divided = self.baseline != "critic" and self.scale != "none" and not self.advantage
        if self.kl_in == "reward" and self.credit == "turn" and divided:
            raise ValueError(
                f"scale: {self.scale} divides what turns are given by its own deviation, so that `kl_coef` would have "
                "no effect with `kl_in: reward` and `credit: turn`; set it to none"
            )
        return self

    def _check_critic(self) -> None:
        if self.baseline != "critic" or self.advantage is not None:  # Of a plugin, in the critic's place too.
            if self.critic is not None:
                raise ValueError("critic: without effect unless `baseline` is `critic` and `advantage` isn't set")
            return
        if self.credit != "turn":
            raise ValueError("baseline: a critic's advantages are those of turns; set `credit: turn`")
        if self.scale not in ("advantage_std", "none"):
            raise ValueError(f"scale: {self.scale!r} compares rewards; with a critic take advantage_std or none")
        if self.critic is None:
            self.critic = CriticConfig()
