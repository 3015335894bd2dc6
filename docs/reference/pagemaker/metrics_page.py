"""metrics.md: the name of every metric.

Those of episodes stand in the docstring of `toolrl.loop.metrics`. Those of updates, time and speed are names in the
code of the trainers and loops; their meanings are here, and a name without a meaning, or a meaning without a name in
the code, is an error.
"""

from __future__ import annotations

import ast
import re

from pagemaker.markdown import code, page, prose, table
from pagemaker.source import module_doc, tree

MODULES = (
    "loop.data", "torch:loop.batches", "torch:loop.difficulty", "torch:loop.overlap", "torch:loop.training",
    "loop.evaluate", "torch:fine_tuning.loop", "torch:trainer", "torch:base_trainer", "torch:critic",
    "torch:objective.loss", "torch:objective.credit", "torch:objective.distillation",
    "torch:objective.kl_reward", "torch:loop.teachers",
    "ray:worker_pool", "tools.restart_counts",
)  # fmt: skip
"""Where names are written that don't stand in the docstring."""
OTHER_KEYS = {
    "attention_mask", "body", "critic", "head", "input_ids", "optimizer", "policy", "schedule", "use_cache",
    "warmup_steps", "episodes", "group", "groups", "node", "pid", "restarted", "row", "state", "uses", "version",
    "waiting_groups", "weights", "worker", "workers", "compile", "dtype", "gradient_checkpointing", "lora",
    "failing", "none", "shuffled", "accuracy", "steps",
}  # fmt: skip
"""Keys of other dicts in these modules: states and arguments."""

LEADS = {
    "Update": "`ratio/*`, `clip/*`, `importance/*`, `approx_kl` and `logprob_mismatch/*` are of the trained tokens: "
    "the sampled tokens of episodes with an advantage, whatever KL and entropy terms train besides. Other episodes, "
    "such as those of flat groups, then need no pass over the model. `entropy` is of all sampled tokens, `kl` of "
    "those of `episodes/trained`."
}
"""What stands above a section's table."""

MEANINGS: dict[str, dict[str, str]] = {
    "Update": {
        "loss": "The loss of the step: `loss/total`, or in `sft` the mean negative log-likelihood of a token.",
        "loss/total": "Policy, KL and entropy terms together, summed over the step's updates.",
        "loss/policy": "The policy-gradient term.",
        "ratio/mean": "Mean over tokens of policy over old policy, as the loss takes it: of each token, or with "
        "`algorithm.ratio: sequence` (gspo) of its whole sequence. 1 if a step has one update.",
        "ratio/max": "The greatest ratio.",
        "clip/low": "Share of tokens clipped below.",
        "clip/high": "Share clipped above.",
        "clip_fraction": "Their sum; of the three, those that a plugin's policy loss gives.",
        "importance/mean": "Mean importance weight; only with `algorithm.importance`.",
        "importance/capped": "Share of tokens whose weight lies above the cap.",
        "importance/rejected": "Share of tokens that were left out; only with `algorithm.rejection`.",
        "approx_kl": "Estimate of KL(old policy ‖ policy): how far the step's updates went.",
        "kl": "Estimate of KL(policy ‖ reference) over the sampled tokens of `episodes/trained`, weighed by policy "
        "over rollout; only with `algorithm.kl_coef` or `algorithm.reference`. With `kl_in: reward` the mean of the "
        "sampling policy's log-probability less the reference's over all episodes that didn't fail.",
        "kl/penalty": "Mean over episodes of what it adds to the reward; only with `algorithm.kl_in: reward`.",
        "distillation/kl": "Mean of log policy − log teacher over the sampled tokens, the policy as it sampled: it "
        "estimates KL(policy ‖ teacher) of a token; only with `algorithm.distillation`.",
        "distillation/kl_max": "The greatest.",
        "entropy": "Entropy of the policy that sampled, in nats: the mean of −log p over all sampled tokens, whose "
        "expectation it is. With `rollout.top_p`, `top_k` or `min_p` it comes out less.",
        "logprob_mismatch/mean": "Mean distance of the engine's and the trainer's log-probabilities before the step's "
        "first update, over tokens that were sampled with these weights; left out if none was.",
        "logprob_mismatch/max": "The greatest distance.",
        "grad_norm": "Norm of the gradient before clipping.",
        "learning_rate": "Of the step's last update.",
        "updates": "Optimizer steps that were made; 0 where no episode had an advantage.",
        "groups/flat": "Share of groups whose rewards were all equal; with `algorithm.drop_flat_groups`, of those that "
        "were left out.",
        "groups/set_aside": "Groups without spread whose place others took; only with `algorithm.dynamic_sampling`.",
        "tasks/solved": "Tasks that are set aside for a pass rate of `algorithm.difficulty.solved` or more; "
        "these three only with `algorithm.difficulty`.",
        "tasks/unsolved": "Tasks that are set aside for a pass rate of `algorithm.difficulty.unsolved` or less.",
        "tasks/active": "The other tasks: those between, and those that were never sampled.",
        "groups/waiting": "Groups that are finished and wait for a step; only with `rollout.max_staleness`.",
        "groups/replayed": "Groups that were trained on before; only with `rollout.replay`.",
        "staleness/distance": "Mean distance of the sampled log-probabilities and the trainer's over tokens that older "
        "weights sampled: the policy has changed since. Only with `rollout.max_staleness`.",
        "staleness/mean": "Mean age of the trained tokens in versions of the weights.",
        "staleness/max": "The greatest age.",
        "overlong/penalty": "Mean penalty for length, 0 or less; only with `algorithm.overlong`.",
        "critic/loss": "Half the squared error of the critic's values, over turns or, with `critic.level: token`, "
        "tokens; only with a critic.",
        "critic/grad_norm": "Norm of the critic's gradient before clipping.",
        "critic/values": "Mean value before the update.",
        "critic/explained_variance": "Share of the returns' variance that the values foresaw: 1 at best.",
        "episodes/trained": "Episodes with a place in the loss: without failed ones and dropped groups.",
        "tokens/trained": "In `sft`: the assistant's tokens of the batch.",
    },
    "Time and speed": {
        "time/rollout": "Seconds of sampling, tools and scoring; with `rollout.max_staleness` of waiting for the "
        "step's groups.",
        "time/teacher": "Seconds of scoring by teachers, a part of `time/rollout`; with `rollout.max_staleness` "
        "beside training.",
        "time/update": "Seconds of the updates.",
        "time/weights": "Seconds of handing the weights to the engine.",
        "time/step": "Seconds of the whole step.",
        "time/eval": "Seconds of an evaluation.",
        "time/encode": "In `sft`: seconds of turning demonstrations into tokens.",
        "speed/tokens_per_second": "Sampled tokens over `time/rollout`; with `rollout.max_staleness` over `time/step`.",
        "speed/episodes_per_second": "Episodes over `time/step`.",
    },
    "Data": {
        "data/bad_rows": "Rows of the data sets that were left out; only with `data.bad_rows: skip`.",
    },
    "Rollout workers": {
        "cluster/workers": "Workers that are ready; these three only with `cluster.rollout_workers`.",
        "cluster/restarted_workers": "Workers that died and were replaced, since the line before.",
        "cluster/restarted_groups": "Groups that started again because their worker had died, since the line before.",
        "cluster/restarted_limits": "Restarts of the process that keeps a cluster's limits, since the line before; "
        "only where there were some.",
        "cluster/restarted_servers": "Servers of tools, or connections to them, that were lost and work again, since "
        "the line before; only where there were some.",
    },
    "Trainer workers": {},
}

_INTRO = """\
Every step and every evaluation writes one line to `metrics.jsonl` of [the run folder](run-folder.md). Its keys are
`step`, `kind` (`train`, `eval`, `sft` or `rollout`), `time`, `episodes`, and the metrics under these names. Observers
get the same names."""


def make() -> str:
    """The page. Raises ValueError where meanings and code differ."""
    explained = {name for section in MEANINGS.values() for name in section}
    written = names_in_code()
    if written != explained:
        unknown, gone = sorted(written - explained), sorted(explained - written)
        raise ValueError(f"metrics without a meaning: {unknown}; meanings without a metric in the code: {gone}")
    lead, rows = episode_metrics()
    parts = [_INTRO, "## Episodes", prose(lead), table(("metric", "meaning"), rows)]
    parts += ["## Evaluation", table(("metric", "meaning"), _evaluation())]
    for title, section in MEANINGS.items():
        rows = [(code(name), meaning) for name, meaning in section.items()]
        parts += [f"## {title}", LEADS.get(title, ""), table(("metric", "meaning"), rows)]
    return page("Metrics", *parts)


def names_in_code() -> set[str]:
    """Keys of dict displays and of assignments `x["…"] = …` in the modules that make metrics."""
    found = set()
    for module in MODULES:
        for node in ast.walk(tree(module)):
            keys: list[ast.expr | None] = []
            if isinstance(node, ast.Dict):
                keys = list(node.keys)
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                keys = [node.slice]
            found |= {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return found - OTHER_KEYS


def episode_metrics() -> tuple[str, list[tuple[str, str]]]:
    """The docstring's lead, and its list as rows."""
    text = module_doc("loop.metrics")
    lead = "\n\n".join(part for part in text.split("\n\n")[1:] if not part.startswith("    "))
    rows: list[tuple[str, str]] = []
    for line in text.splitlines():
        match = re.match(r"    ([\w<>@/]+(?:, [\w<>@/]+)*) +(\S.*)$", line)
        if match:
            rows.append((", ".join(code(name.strip()) for name in match[1].split(",")), match[2]))
        elif line.startswith("     ") and rows:
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line.strip()}")
    return lead, rows


def _evaluation() -> list[tuple[str, str]]:
    return [
        (
            "`avg@k`",
            "Mean over tasks of the share of correct episodes, failed ones counted as wrong; k is "
            "`evaluation.episodes_per_task`.",
        ),
        ("`pass@k`", "Mean over tasks of the chance that one of k episodes is correct (unbiased estimate)."),
    ]
