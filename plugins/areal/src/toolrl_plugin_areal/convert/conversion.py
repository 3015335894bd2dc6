"""AReaL's settings: its defaults, the YAML over them, and overrides over that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolrl.errors import ConfigError
from toolrl_common.conversion import Conversion, Reading, merged, read_script, read_text

_HINT = "Give the YAML of AReaL's TIR example, or its start script."

DEFAULTS: dict[str, Any] = {
    "seed": 1,
    "total_train_epochs": 1,
    "gconfig.n_samples": 1,
    "gconfig.max_new_tokens": 16384,
    "gconfig.temperature": 1.0,
    "gconfig.top_p": 1.0,
    "gconfig.top_k": 100_000_000,
    "actor.dtype": "bfloat16",
    "actor.gradient_checkpointing": False,
    "actor.optimizer.type": "adam",
    "actor.optimizer.lr": 0.001,
    "actor.optimizer.weight_decay": 0.01,
    "actor.optimizer.beta1": 0.9,
    "actor.optimizer.beta2": 0.999,
    "actor.optimizer.eps": 1e-08,
    "actor.optimizer.min_lr_ratio": 0.0,
    "actor.optimizer.lr_scheduler_type": "constant",
    "actor.optimizer.warmup_steps_proportion": 0.001,
    "actor.optimizer.gradient_clipping": 1.0,
    "actor.ppo_n_minibatches": 4,
    "actor.eps_clip": 0.2,
    "actor.reward_scaling": 1.0,
    "actor.reward_bias": 0.0,
    "actor.kl_ctl": 0.1,
    "train_dataset.batch_size": 1,
    "train_dataset.shuffle": True,
    "tir.max_turns": 2,
    "tir.max_length": 3000,
    "tir.tool_timeout": 30,
    "tir.enable_tools": "python",
    "tir.is_chat_model": False,
}
"""Those of AReaL's own defaults that decide what a run does; a config that leaves them out means them."""


class ArealConversion(Conversion):
    """A null is AReaL's default, unless `null` asks for it."""

    system, defaults = "AReaL", DEFAULTS

    def get(self, *keys: str, default: Any = None) -> Any:
        """What the user gave, else AReaL's default."""
        value = super().get(*keys, default=default)
        return next((self.defaults[key] for key in keys if key in self.defaults), default) if value is None else value

    def given(self, *keys: str) -> bool:
        """Whether the user gave a value of one of these, or of a setting below it. A null is none."""
        return any(
            value is not None and (name in keys or name.startswith(tuple(f"{key}." for key in keys)))
            for name, value in self._given.items()
        )

    def null(self, key: str) -> bool:
        """Whether the user set it to null."""
        self._used.add(key)
        return key in self._given and self._given[key] is None


def read(path: str, overrides: Sequence[str]) -> Reading:
    """What a YAML holds, or the one that a start script names, with overrides. Raises ConfigError."""
    text = read_text(path, _HINT)
    if Path(path).suffix not in (".yaml", ".yml"):
        path, words = _start_command(text, path)
        text, overrides = read_text(path, _HINT), [*words, *overrides]
    reading = Reading(Path(path).parent)
    reading.tree = reading.read_yaml(path, text)
    reading.override(overrides)
    tree = reading.tree
    if isinstance(tree.get("tir_config"), dict):
        tree["tir"] = merged(tree["tir"] if isinstance(tree.get("tir"), dict) else {}, tree.pop("tir_config"))
    return reading


def _start_command(text: str, script: str) -> tuple[str, list[str]]:
    """The config file that the first command with `--config` names, and the overrides behind it. Raises ConfigError."""
    for command in read_script(text, script):
        words = iter(command)
        for word in words:
            option, equals, name = word.partition("=")
            if option == "--config":
                name = name if equals else next(words, "")
                return _found(name, script), [word for word in words if "=" in word]
    raise ConfigError(
        "no command here starts AReaL with `--config FILE`",
        where=script,
        hint="Give the script that runs `python3 … train_tir.py --config FILE …`, or that YAML.",
    )


def _found(name: str, script: str) -> str:
    """The file, from here or beside the script, which may be started from elsewhere."""
    beside = Path(script).parent
    for path in (Path(name), beside / name, beside / Path(name).name):
        if path.is_file():
            return str(path)
    raise ConfigError(
        f"its command names `--config {name}`, and there is no such file here",
        where=script,
        hint="Run this in the folder that the script is started in, or give that YAML.",
    )
