"""The kinds of component, in one table: hook, label, protocol and places in the config.

Everything else derives from it: which hooks a registry calls, what messages call a component, which fields of a config
name one, what `toolrl new-plugin` writes and what the contract tests run over. A new kind is a row here and a hook of
the same name in `hookspecs.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of component."""

    name: str
    """Plural, as in `first_party.json` and the output of `toolrl list-plugins --json`."""
    singular: str
    """An identifier: `toolrl new-plugin --kind` has it with `-` for `_`, contract tests have it as an argument."""
    label: str
    """What one component is called in a message."""
    protocols: tuple[str, ...]
    """Names in `toolrl.protocols`: a built component follows the first, or one of the others in its place."""
    places: tuple[str, ...] = ()
    """Where a config names one: keys from the top joined by `.`, `*` for any key, `[]` after the key of a list."""

    @property
    def hook(self) -> str:
        """The hook that registers components of this kind."""
        return f"toolrl_{self.name}"


_TEACHERS = "algorithm.distillation.teachers.*.engine"

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("parsers", "parser", "parser", ("ToolParser",), ("environments.*.parser",)),
        Kind("tools", "tool", "tool", ("Toolset",), ("environments.*.tools[]", "environments.*.history[]")),
        Kind("rewards", "reward", "reward", ("Reward", "ScoresGroups"), ("environments.*.rewards[]",)),
        Kind("engines", "engine", "engine", ("RolloutEngine", "ChatEngine"), ("engine", _TEACHERS)),
        Kind("datasets", "dataset", "data set", ("TaskSource",), ("data.train", "data.eval", "sft.data")),
        Kind("chat_formats", "chat_format", "chat format", ("ChatFormat",), ("environments.*.chat_format",)),
        Kind("harnesses", "harness", "harness", ("Harness",), ("environments.*.harness",)),
        Kind("advantages", "advantage", "advantage estimator", ("AdvantageEstimator",), ("algorithm.advantage",)),
        Kind("policy_losses", "policy_loss", "policy loss", ("PolicyLoss",), ("algorithm.policy_loss",)),
        Kind("trainers", "trainer", "trainer", ("TrainerBackend",)),
        Kind("observers", "observer", "observer", ("Observer",), ("observers[]",)),
        Kind("clusters", "cluster", "cluster", ("Cluster",), ("cluster.use",)),
        Kind("commands", "command", "command", ("Command",)),
    )
}
"""By name, in the order that lists show."""
