"""The config's sections as TypedDicts: editors complete and type checkers read what `toolrl.train` is given.

Made from the pydantic models by `docs/reference/make.py`, with the sections of the trainer `torch`. The models check
the values; bounds and defaults are in the config reference. A plain dict is accepted wherever one of these is.
"""
# ruff: noqa: E501
# fmt: off

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict


class LoraSection(TypedDict, total=False):
    """Train low-rank additions to linear layers (arXiv 2106.09685) and leave the model's own weights as they are."""
    rank: int
    alpha: float
    target_modules: str | list[str]

class ModelSection(TypedDict, total=False):
    """The model to train."""
    path: str
    """A folder in Hugging Face layout, with its tokenizer."""
    trust_remote_code: bool
    """Run code that the model's folder brings along."""
    dtype: Literal["auto", "float32", "bfloat16"]
    """auto: bfloat16 on cuda, and on a CPU with instructions for it where the model is stored in it."""
    attention: str | None
    """transformers' attn_implementation."""
    gradient_checkpointing: Literal["auto", True, False]
    """Recompute each layer's activations in the backward pass."""
    compile: bool
    """Compile the decoder layers of policy and reference for updates (torch.compile)."""
    lora: LoraSection | Mapping[str, Any] | None
    """Train a LoRA adapter instead of all weights."""

class DataSection(TypedDict, total=False):
    """The data sets that tasks come from."""
    train: Any
    """Data set to train on, or a list of data sets that are mixed by their shares."""
    eval: Any
    """Data set to evaluate on, or a list of them, whose metrics are also reported one by one."""
    shuffle: bool
    """Shuffle the training tasks anew each epoch, by the run's seed."""
    bad_rows: Literal["stop", "skip"]
    """Handling of rows that can't be read."""

class EnvironmentSection(TypedDict, total=False):
    """A bundle of tools, parser, chat format and rewards."""
    parser: Any
    """Parser of tool calls."""
    chat_format: Any
    """How messages become tokens."""
    harness: Any
    """What plays the episodes, in the place of toolrl's turn loop."""
    system_prompt: str | None
    """Put before each task's messages, unless these begin with a system message."""
    tools: list[Any]
    """Toolsets."""
    history: list[Any]
    """What may rewrite the history before a turn, in order."""
    rewards: list[Any]
    """Reward functions."""
    end_flags: list[str]
    """The answer that ends an episode: `answer` for <answer>…</answer>, `boxed` for \\boxed{…}, or a regular expression whose first group is the answer."""
    stop_at_answer: bool
    """End generation where an end flag closes."""
    max_turns: int
    """Assistant turns in an episode."""
    max_invalid_turns: int | None
    """An episode ends as `invalid_calls` after so many turns in a row none of whose calls could be run: unreadable ones, tools that aren't there, wrong arguments."""
    call_cost: float
    """Taken off the reward for each call."""
    untrained_roles: list[str]
    """Roles under which a tool or a harness asks the model, untrained: a simulated user."""

class RolloutSection(TypedDict, total=False):
    """How episodes are sampled."""
    temperature: float
    """Of sampling and of the trained policy."""
    top_p: float
    """Nucleus."""
    top_k: int
    """0 for no limit."""
    min_p: float
    """Leaves out tokens with less than this share of the likeliest one's probability."""
    keep_sampling_masks: bool
    """Record which tokens top_p, top_k and min_p left to draw each one from, and train on exactly the distribution that was sampled (arXiv 2512.02556)."""
    max_turn_tokens: int
    """Sampled tokens in one turn at most."""
    max_episode_tokens: int | None
    """All tokens of an episode at most."""
    concurrency: int
    """Episodes in flight."""
    max_staleness: int
    """Versions that the weights may have moved on since a token was sampled, when it is trained on."""
    replay: float
    """With max_staleness: the share of a step's groups that were trained on before, where there are any that are young enough."""
    max_error_rate: float
    """A run stops when more than this share of a step's episodes failed, or of its tool calls crashed."""

class TeacherSection(TypedDict, total=False):
    """A model that scores what the policy samples."""
    model: str | None
    engine: Any

class DistillationSection(TypedDict, total=False):
    """On-policy distillation: teachers score the tokens that the policy sampled, and the reverse KL divergence KL(policy ‖ teacher) is lowered."""
    teachers: Mapping[str, TeacherSection | Mapping[str, Any]]
    coef: float
    kl_as: Literal["advantage", "loss"]
    clip: float | None
    reward_weight: float

class CriticSection(TypedDict, total=False):
    """A critic: a second model, as large as the policy, that learns what an episode will still earn."""
    level: Literal["turn", "token"]
    learning_rate: float
    gae_lambda: float
    value_clip: float | None
    warmup_steps: int

class OverlongSection(TypedDict, total=False):
    """A penalty that grows over the last tokens before a length (DAPO, arXiv 2503.14476, equation 13)."""
    tokens: int
    buffer: int
    penalty: float

class ImportanceSection(TypedDict, total=False):
    """Weights for samples that another policy drew than the one that the update starts from: an engine whose kernels differ, or weights some versions old."""
    level: Literal["token", "sequence", "mean"]
    mode: Literal["truncate", "reject"]
    cap: float

class RejectionSection(TypedDict, total=False):
    """Samples of another policy that are left out of the policy's loss: those that are far likelier, or far less likely, under the policy that the update starts from."""
    level: Literal["token", "sequence", "mean"]
    low: float
    high: float
    only_negative: bool

class ReferenceSection(TypedDict, total=False):
    """The policy that the KL divergence is taken to."""
    sync_every: int | None

class DifficultySection(TypedDict, total=False):
    """Tasks that are set aside by their pass rate: the mean of `filter_metric` over their last group."""
    solved: float | None
    unsolved: float | None
    revisit: int

class AlgorithmSection(TypedDict, total=False):
    """The objective."""
    group_size: int
    """Episodes of one task, compared with each other."""
    dynamic_sampling: bool
    """Set groups aside whose filter_metric is equal in all episodes, and sample further tasks in their place until the step is full."""
    advantage: Any
    """An advantage estimator of a plugin, in the place of baseline, scale, credit and discount."""
    policy_loss: Any
    """A policy loss of a plugin, in the place of surrogate, ratio and the clip range."""
    distillation: DistillationSection | Mapping[str, Any] | None
    """Learn from teachers, token by token."""
    preset: Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo"]
    """A published algorithm's defaults."""
    baseline: Literal["group_mean", "leave_one_out", "batch_mean", "critic"]
    """What is taken off a reward: the mean of its group, that of the others of its group, that of all groups of the step, or what a critic expects."""
    critic: CriticSection | Mapping[str, Any] | None
    """With `baseline: critic`: how the critic learns."""
    scale: Literal["std", "batch_std", "advantage_std", "none"]
    """What the difference is divided by: the standard deviation of its group's rewards, that of all rewards of the step, that of all advantages of the step, or 1."""
    credit: Literal["episode", "turn"]
    """The tokens that earn the reward of a step, such as a tool's: all of the episode, or those of its turn and of earlier ones."""
    discount: float
    """With `credit: turn`: how much a turn earns of the next one's rewards."""
    overlong: OverlongSection | Mapping[str, Any] | None
    """A penalty for episodes that are too long."""
    mask_truncated: bool
    """Don't train on episodes that ran out of tokens or time."""
    surrogate: Literal["clip", "cispo"]
    """What a ratio outside of the clip range means: no gradient, or a bounded weight."""
    ratio: Literal["token", "sequence"]
    """Of each token's probabilities, or the geometric mean over the trajectory."""
    loss_aggregation: Literal["token_mean", "sequence_mean", "sequence_sum", "constant"]
    """How token losses are averaged: over all tokens."""
    clip_low: float
    """Ratios below 1 − this are clipped."""
    clip_high: float
    """Ratios above 1 + this are clipped."""
    clip_dual: float | None
    """With the surrogate `clip`: the most that a token of negative advantage counts, as its multiple."""
    importance: ImportanceSection | Mapping[str, Any] | None
    """Weigh samples by how likely they are now against when they were drawn."""
    rejection: RejectionSection | Mapping[str, Any] | None
    """Leave out samples that the policy has moved away from, or that its engine computes otherwise."""
    old_logprobs: Literal["recomputed", "sampled"]
    """What ratios are taken to and clipped around: recomputed for the policy before the step's first update (decoupled from the one that sampled, which `importance` and `rejection` account for), or as sampled."""
    kl_coef: float
    """Weight of the KL divergence from the reference, the model at the start."""
    kl_in: Literal["loss", "reward"]
    """Where the divergence counts: as a term of the loss, or taken off the reward token by token."""
    reference: ReferenceSection | Mapping[str, Any] | None
    """`{}` measures `kl` with a `kl_coef` of 0 too."""
    kl_estimator: Literal["k1", "k2", "k3"]
    """How the divergence is estimated."""
    kl_correction: bool
    """Weigh the KL term by policy over rollout and give it the divergence's gradient, without bias for stale samples too."""
    entropy_coef: float
    """Weight of an entropy bonus."""
    drop_flat_groups: bool
    """Leave out groups whose filter_metric is equal in all episodes."""
    filter_metric: Literal["correct", "reward"]
    """What dynamic_sampling and drop_flat_groups compare: whether the answer is correct, or the reward without `overlong`."""
    difficulty: DifficultySection | Mapping[str, Any] | None
    """Set tasks aside that are always or never solved, and look at them again."""

class OptimizerSection(TypedDict, total=False):
    """AdamW and its schedule."""
    optimizer: Literal["adamw", "adamw_8bit"]
    """adamw_8bit: AdamW's two averages in 8 bits by bitsandbytes, 2 bytes a parameter in place of 8, in one process and without offload of the optimizer."""
    learning_rate: float
    """Its highest value, reached after the warm-up."""
    betas: list[Any] | tuple[Any, ...]
    """Decay of AdamW's two running averages."""
    eps: float
    """Added to AdamW's denominator."""
    weight_decay: float
    """On matrices only."""
    schedule: Literal["constant", "linear", "cosine"]
    """After the warm-up, down to min_rate."""
    warmup_steps: int | float
    """Steps over which the rate rises from 0."""
    min_rate: float
    """The share of the rate that a schedule falls to, one step after the last."""
    max_grad_norm: float
    """Gradients are clipped to this norm."""

class TrainerSection(OptimizerSection, total=False):
    """The training loop, and the update of each step."""
    use: str
    """Which trainer: the name of one that a plugin brings."""
    steps: int
    """Rollout and update this often."""
    prompts_per_step: int
    """Tasks of one step."""
    save_every: int | str
    """Write a checkpoint each so many steps, or when a time such as 15min, 2h or 90s has passed since the last."""
    keep_checkpoints: int
    """Older ones are deleted."""
    keep_best: bool | str
    """Keep the best evaluation's checkpoint too, as `checkpoints/best`."""
    updates_per_step: int
    """Mini-batches that one step's episodes are split into."""
    epochs_per_step: int
    """Passes over a step's mini-batches, each of which is an optimizer step."""
    tokens_per_microbatch: int
    """Token budget of one forward pass, padding included."""
    share_prefix: Literal["auto", True, False]
    """Compute what sequences have in common at the start, such as a group's prompt, once in an update."""
    sequence_parallel: int
    """Ranks that compute each micro-batch together, a share of its tokens each, for contexts beyond one GPU (Ulysses)."""
    offload: list[Literal["optimizer", "reference", "critic"]]
    """What waits on the CPU between its uses, where the model is on a GPU: AdamW's averages and masters, the KL term's reference, the critic."""
    router_replay: bool
    """Have the policy's routers choose the experts that the engine took (arXiv 2510.11370), for models with experts."""

class EvaluationSection(TypedDict, total=False):
    """Evaluation during a run and by `toolrl eval`."""
    every: int
    """Evaluate each so many steps."""
    tasks: int | None
    """The first so many tasks, of several data sets in proportion to their rows."""
    episodes_per_task: int
    """k of avg@k and pass@k."""
    temperature: float | None
    """None for the rollout's."""
    top_p: float | None
    """None for the rollout's."""
    top_k: int | None
    """None for the rollout's."""
    min_p: float | None
    """None for the rollout's."""

class ProbeSection(TypedDict, total=False):
    """Evaluate while fine-tuning, and stop when it is good enough."""
    every: int
    accuracy: float

class SftSection(OptimizerSection, total=False):
    """`toolrl sft`: supervised fine-tuning on assistant tokens."""
    data: Any
    """Data set whose messages hold the assistant's turns."""
    from_run: str | None
    """A run folder whose episodes, but those of evaluations, are the demonstrations, instead of data."""
    min_reward: float
    """With from_run: only trajectories whose role got at least this reward."""
    steps: int
    """Optimizer steps."""
    batch_size: int
    """Conversations in one optimizer step."""
    save_every: int | str
    """Write a checkpoint each so many steps, or when a time such as 15min, 2h or 90s has passed since the last."""
    keep_checkpoints: int
    """Older ones are deleted."""
    probe: ProbeSection | Mapping[str, Any] | None
    """Evaluate on data.eval and stop early."""
    tokens_per_microbatch: int
    """Token budget of one forward pass, padding included."""
    share_prefix: Literal["auto", True, False]
    """Compute what sequences have in common at the start, such as a group's prompt, once in an update."""
    offload: list[Literal["optimizer"]]
    """As trainer.offload."""

class RunSection(TypedDict, total=False):
    """The run's folder."""
    name: str
    """Name of its folder."""
    dir: str
    """Folder of run folders."""
    save_episodes: bool
    """Keep every episode, tokens included, in the run folder."""

class ClusterSection(TypedDict, total=False):
    """Processes that a run is spread over: rollout workers and trainer workers, placed by a cluster component (Ray)."""
    use: Any
    """The component that places workers and holds cluster-wide limits."""
    address: str | None
    """Of a running Ray cluster: `auto` for the one on this machine, or HOST:PORT."""
    rollout_workers: int
    """Processes that sample episodes, each with tools and an engine of its own."""
    worker_cpus: float
    """CPUs that Ray sets aside for each worker."""
    worker_gpus: float
    """GPUs that Ray lends each worker."""
    worker_resources: Mapping[str, float]
    """Further resources that a worker's node must have, by the names Ray knows."""
    weight_backend: Literal["auto", "gloo", "nccl"]
    """How new weights go to rollout workers whose engine is vLLM."""
    worker_timeout: float
    """Seconds after which a rollout worker that doesn't answer is replaced."""
    worker_restarts: int
    """The run stops when a worker dies once more than this before it has finished a group again, or when so many workers died over one group."""
    trainer_workers: int
    """Processes that train one model together, placed by Ray."""
    trainer_cpus: float
    """CPUs that Ray sets aside for each trainer worker."""
    trainer_gpus: int
    """GPUs that Ray lends each trainer worker, which computes on the first."""
    trainer_restarts: int
    """When a trainer worker dies, all of them start again from the last checkpoint."""
    shard: Literal["auto", True]
    """Spread weights, gradients and the optimizer's state over the ranks by FSDP2."""
    cpu_offload: bool
    """Keep the shards in the host's memory and bring them to the device layer by layer."""
    rank_timeout: float
    """Seconds that a rank waits for the others before it ends the run with an error."""

class ConfigSections(TypedDict, total=False):
    """A whole run."""
    model: ModelSection | Mapping[str, Any]
    data: DataSection | Mapping[str, Any]
    environments: Mapping[str, EnvironmentSection | Mapping[str, Any]]
    """By name."""
    engine: Any
    """Rollout engine."""
    rollout: RolloutSection | Mapping[str, Any]
    algorithm: AlgorithmSection | Mapping[str, Any]
    trainer: TrainerSection | Mapping[str, Any]
    evaluation: EvaluationSection | Mapping[str, Any]
    sft: SftSection | Mapping[str, Any] | None
    """Settings of `toolrl sft`."""
    observers: list[Any]
    """Observers of the run's events."""
    run: RunSection | Mapping[str, Any]
    cluster: ClusterSection | Mapping[str, Any]
    """Processes that the run is spread over."""
    seed: int
    """Of data order, sampling, tools and torch."""
    deterministic: bool
    """The same metrics and weights, bit for bit, whenever the run is repeated, or killed and resumed, on one machine with one number of threads."""
    device: str
    """auto, cpu, cuda or cuda:N."""
    threads: int | None
    """CPU threads of torch."""
