"""Programs that start scripts run: verl's trainers, and others that are refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from toolrl.errors import ConfigError

_TRAINER = re.compile(r"(?:^|[./])(?:main_(?:ppo|dapo|grpo|entropy)(?:_v0|_sync)?|fully_async_main)(?:\.py)?\Z")
_PYTHON = re.compile(r"(?:^|/)(?:python[\d.]*|torchrun)\Z")
_PURPOSES = (
    ("sft_trainer|main_sft", "fine-tunes on demonstrations (SFT)", "`toolrl sft` does that."),
    ("main_dpo|main_spin", "trains on pairs of answers (DPO)", ""),
    ("main_prime", "trains a reward model beside the policy (PRIME)", ""),
    ("main_gkd", "distills from a teacher", "`algorithm.distillation` of a toolrl config does that."),
    ("main_dance", "trains a model that draws", ""),
    ("spo_main|main_sppo|gvpo_main|main_flowrl", "trains with a loss that toolrl doesn't have", ""),
    ("main_rep_exp", "trains with a bonus for exploration that toolrl doesn't have", ""),
    ("main_gen", "samples without training", "`toolrl rollout` does that."),
    ("main_eval", "evaluates without training", "`toolrl eval` does that."),
)
"""Parts of names of programs, what such a program does, and which command is toolrl's."""
_HINT = "Give the script that runs `python3 -m verl.trainer.main_ppo …`, or verl's YAML."
_ASYNC = ("staleness_threshold=0.1", "trigger_parameter_sync_step=4", "require_batches=1")
_AS_SAMPLED = "algorithm.rollout_correction.bypass_mode=True"


@dataclass(frozen=True)
class Program:
    """A command that starts one of verl's trainers."""

    module: str
    arguments: list[str]

    @property
    def folder(self) -> Path:
        """The folder of the module, in which Hydra looks for `--config-path`."""
        return Path(self.module.removesuffix(".py").replace(".", "/")).parent

    @property
    def implied(self) -> list[str]:
        """Settings of the trainer's own config."""
        if "main_grpo" in self.module:  # There is none in verl; guides that name it mean GRPO.
            return ["algorithm.adv_estimator=grpo"]
        if "fully_async" in self.module:
            return [*(f"async_training.{setting}" for setting in _ASYNC), _AS_SAMPLED]
        if "one_step_off" in self.module:
            return ["async_training.staleness_threshold=1", _AS_SAMPLED]
        return []


MAIN = Program("verl.trainer.main_ppo", [])


def find_program(commands: Iterable[list[str]], script: str) -> Program:
    """Find the first command that starts a trainer. Raises ConfigError, which names what the script starts instead."""
    other = ""
    for command in commands:
        for place, word in enumerate(command):
            if _TRAINER.search(word):
                return Program(word, [it for it in command[place + 1 :] if it])
        other = other or _started(command)
    raise _refusal(other, script)


def _started(command: list[str]) -> str:
    """Return the module or the file that a command starts Python with, or nothing."""
    if not any(_PYTHON.search(word) for word in command):
        return ""
    before = ["", *command]
    return next((it for last, it in zip(before, command, strict=False) if last == "-m" or it.endswith(".py")), "")


def _refusal(module: str, script: str) -> ConfigError:
    if not module:
        why = "no command here starts verl's trainer: nothing calls main_ppo"
        return ConfigError(why, where=script, hint=_HINT)
    does, instead = next(
        ((does, instead) for words, does, instead in _PURPOSES if re.search(words, module)),
        ("isn't a trainer of verl that can be converted", ""),
    )
    why = f"{module} {does}; expected main_ppo, main_dapo or fully_async_main"
    return ConfigError(why, where=script, hint=instead or _HINT)
