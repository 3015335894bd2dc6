"""Makes one Env for all components of a run that name the same classes.

Objects are shared while one component holds them, so that parser, toolset and reward see the same state.
"""

from __future__ import annotations

import json
import threading
import weakref
from typing import Any

from toolrl.errors import ConfigError
from toolrl_plugin_rlfactory.envs import TOOL_ENV_REGISTRY, Env
from toolrl_plugin_rlfactory.loading import load_class
from toolrl_plugin_rlfactory.managers import ManagerConfig
from toolrl_plugin_rlfactory.options import EnvOptions

_made: weakref.WeakValueDictionary[str, Env] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def shared_env(options: EnvOptions, where: str | None, default: str = "base") -> Env:
    """The Env of these options, made when it is first asked for. Without `env` it is RLFactory's own called `default`.
    Raises ConfigError."""
    config = {"enable_thinking": False, "mcp_mode": "stdio", "tool_name_selected": [], **options.config}
    config["tool_manager"] = options.tool_manager
    key = json.dumps([options.env or default, config], sort_keys=True, default=repr)
    with _lock:
        env = _made.get(key)
        if env is None:
            cls: Any = load_class(options.env, where) if options.env else TOOL_ENV_REGISTRY[default]
            env = _made[key] = _built(cls, ManagerConfig(config), options.env or default, where)
        return env


def _built(cls: Any, config: Any, name: str, where: str | None) -> Env:
    try:
        env: Env = cls(config)
    except ConfigError as error:
        raise ConfigError(error.problems, where=where, hint=error.hint) from None
    except Exception as error:
        raise ConfigError(f"{name!r} can't be made: {type(error).__name__}: {error}", where=where) from error
    if not hasattr(env, "tool_manager"):
        raise ConfigError(f"{name!r} has no tool_manager", where=where, hint="Call super().__init__(config) in it.")
    return env
