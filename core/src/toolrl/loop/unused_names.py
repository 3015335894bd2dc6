"""Names in a config that no episode of a training run had to do with: the run says so.

A misspelled role in `untrained_roles` would train a simulated user in silence, so roles are looked at after the first
step. An environment may get its tasks later, so environments are looked at when the run is finished.
"""

from __future__ import annotations

import logging

from toolrl.config.model import Config
from toolrl.protocols import RunInfo, StepReport
from toolrl.types import Episode

_log = logging.getLogger(__name__)


class UnusedNames:
    """An observer that warns of environments without episodes and of `untrained_roles` that nobody has."""

    def __init__(self, config: Config) -> None:
        self._environments = list(config.environments)
        self._untrained = {name: it.untrained_roles for name, it in config.environments.items()}
        """By environment, the roles to look for; taken out when that is done."""
        self._roles: dict[str, set[str]] = {}
        """By environment, the roles of its trajectories so far."""
        self._resumed = False

    def toolrl_run_start(self, run: RunInfo) -> None:
        """Note whether episodes of the run were played before."""
        self._resumed = run.start_step > 0

    def toolrl_episode_end(self, episode: Episode) -> None:
        """Note its environment and its roles. Those of a failed episode may be fewer."""
        roles = self._roles.setdefault(episode.environment, set())
        roles.update(trajectory.role for trajectory in episode.trajectories)

    def toolrl_step_end(self, report: StepReport) -> None:
        """Warn of roles after a step of training, once for each environment."""
        if report.kind != "train":
            return
        for name, roles in self._roles.items():
            for role in self._untrained.pop(name, ()) if roles else ():
                if role not in roles:
                    _log.warning(
                        "environments.%s.untrained_roles: no trajectory so far has the role %r; there is %s",
                        name, role, ", ".join(sorted(roles)),
                    )  # fmt: skip

    def toolrl_run_end(self, error: BaseException | None) -> None:
        """Warn of environments."""
        if error is not None or self._resumed or not self._roles:
            return
        for name in self._environments:
            if name in self._roles:
                continue
            _log.warning("environments.%s: no episode of the run was played in it, as none of its tasks picks it", name)
