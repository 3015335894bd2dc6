"""`toolrl rlfactory convert`: a toolrl config from a start script or a config of RLFactory."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import partial
from importlib.util import resolve_name
from pathlib import Path
from typing import Any, ClassVar

from toolrl.errors import ConfigError
from toolrl_common.conversion import Conversion, ConvertCommand, Reading, lose_imports, user_path
from toolrl_plugin_rlfactory.loading import STAND_INS, own_spec, place_of
from toolrl_plugin_rlfactory.managers import parse_mcp_tools_config
from toolrl_plugin_rlfactory.options import REGISTERED
from toolrl_plugin_verl.convert import mapping
from toolrl_plugin_verl.convert.command import VerlConversion, read
from toolrl_plugin_verl.convert.learning import LEARNING

_ENV = "actor_rollout_ref.env"
_ROLLOUT = "actor_rollout_ref.rollout"
_INTERPRETER = "code_interpreter"


class RLFactoryConversion(VerlConversion):
    """A conversion of RLFactory's settings."""

    system = "RLFactory"
    defaults: ClassVar = {
        **VerlConversion.defaults,
        "algorithm.adv_estimator": "grpo",
        "data.train_batch_size": 128,
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
        "trainer.experiment_name": "run",
        "trainer.total_epochs": 1,
        f"{_ROLLOUT}.temperature": 0.7,
        f"{_ROLLOUT}.top_p": 0.95,
        f"{_ROLLOUT}.val_kwargs.top_p": 0.95,
        f"{_ROLLOUT}.stop": ["<|im_end|>"],
        "reward_model.reward_manager": "parallel",
        f"{_ENV}.tool_timeout": 10,
        f"{_ENV}.mcp_mode": "stdio",
    }
    learning = re.compile(
        rf"{LEARNING.pattern}|^{re.escape(_ENV)}\.(?:name|tool_manager|mcp_mode|mmtool|load_custom|config_path|tool_name|"
        r"max_prompt|use_verify)"
    )


class RLFactoryConvert(ConvertCommand):
    """The command."""

    system = "rlfactory"
    config_help = "main_grpo.sh or another script that starts verl.trainer.main_ppo, or a YAML"
    overrides_help = "overrides over it, such as actor_rollout_ref.rollout.n=8"

    def convert(self, config: str, overrides: Sequence[str]) -> tuple[dict[str, Any], Conversion]:
        """Read and convert. RLFactory's repository has scripts of verl's, which set nothing of its own."""
        reading = read(config, overrides)
        if _is_rlfactory(reading):
            return convert(RLFactoryConversion(reading))
        settings = VerlConversion(reading)
        settings.remark(f"{_ENV}: nothing of RLFactory's is set here, so this is converted as a config of verl")
        return mapping.convert(settings)


def _is_rlfactory(reading: Reading) -> bool:
    """Tell whether anything of RLFactory's own is set, or a config of it that isn't here is named."""
    settings = Conversion(reading)
    own = bool(settings.section(_ENV)) or settings.given(
        f"{_ROLLOUT}.max_turns", "reward_rollout.if_use_reward_rollout"
    )
    named = any("rl_factory" in place for place, _ in reading.problems)
    return own or named or settings.get("reward_model.reward_manager") == "parallel"


def convert(settings: RLFactoryConversion) -> tuple[dict[str, Any], Conversion]:
    """The config, and the conversion with its notes. All but the environment is verl's."""
    if settings.get("actor_rollout_ref.actor.state_masking") is False:
        settings.lose("actor_rollout_ref.actor.state_masking", "what tools answer is never trained on")
    judged = "reward_rollout.if_use_reward_rollout"
    if settings.flag(judged):
        settings.lose(judged, "no reward model runs here; the reward `llm_judge` asks one over HTTP")
    else:
        settings.idle("reward_rollout")
    if (manager := settings.get("reward_model.reward_manager")) not in (None, "parallel"):
        settings.lose("reward_model.reward_manager", f"{manager!r} here, and the config scores by its env")
    return mapping.convert(settings, environment)


def environment(settings: Conversion) -> dict[str, Any]:
    """`environments.default`."""
    classes = _classes(settings)
    thinking = settings.flag(f"{_ENV}.enable_thinking", default=True)
    result: dict[str, Any] = {
        "parser": {"use": "rlfactory", "options": deepcopy(classes)} if classes else "rlfactory",
        "chat_format": {"use": "template", "options": {"template_kwargs": {"enable_thinking": thinking}}},
    }
    tools = _tools(settings, classes)
    if tools:
        result["tools"] = tools
    result["rewards"] = [_reward(settings, classes)]
    result["max_turns"] = settings.whole(f"{_ROLLOUT}.max_turns", default=2)
    return result


def _classes(settings: Conversion) -> dict[str, Any]:
    """Which classes are at work, in the same words for parser, tools and reward, so that they share one object."""
    manager, env = _manager(settings), _env(settings)
    classes = {**({"env": env} if env else {}), **({"tool_manager": manager} if manager != "qwen3" else {})}
    if not env and manager in REGISTERED:
        return classes
    # Classes of the user's may read any setting. Of RLFactory's own manager `mcp` reads the file of tools here.
    elsewhere = {"name", "tool_manager", *(["config_path"] if manager in REGISTERED else [])}
    given = settings.section(_ENV)
    config = {key: value for key, value in given.items() if key not in elsewhere and "." not in key}
    return {**classes, **({"config": config} if config else {})}


def _manager(settings: Conversion) -> str:
    key = f"{_ENV}.tool_manager"
    name = settings.get(key) or "qwen3"
    settings.get(f"{_ENV}.model_type")
    if name in REGISTERED:
        return str(name)
    if isinstance(name, str) and ":" in name:
        return name
    found = _class_beside(settings, f"tool_manager/{name}_manager.py", "Manager")
    if found:
        return found
    settings.lose(key, f"no envs/tool_manager/{name}_manager.py has it; the config reads calls as qwen3")
    return "qwen3"


def _env(settings: Conversion) -> str | None:
    """The class of the user's, or None for SearchEnv."""
    name = settings.get(f"{_ENV}.name", default="base")
    if isinstance(name, str) and ":" in name:
        return name
    found = _class_beside(settings, f"{name}.py", "Env") or _registered(settings, str(name))
    if not found and name != "search":
        settings.lose(f"{_ENV}.name", f"no class in envs/{name}.py scores; the config scores as `search`")
    return found


def _registered(settings: Conversion, name: str) -> str | None:
    """Find the class that `envs/__init__.py` registers under a name, as `file.py:Class`."""
    for folder in (settings.folder / "envs", Path("envs")):
        file = folder / "__init__.py"
        text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
        entry = re.search(rf"['\"]{re.escape(name)}['\"]\s*:\s*(\w+)", text)
        source = entry and re.search(rf"^from \.(\w+) import .*\b{entry[1]}\b", text, re.MULTILINE)
        if source:
            return _class_beside(settings, f"{source[1]}.py", "Env")
    return None


def _class_beside(settings: Conversion, file: str, base: str) -> str | None:
    """The last class of a file in `envs`, beside the script or here, that derives from one called `…base`; as
    `file.py:Class`."""
    for path in (folder / "envs" / file for folder in (settings.folder, Path())):
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        found = re.findall(rf"^class (\w+)\(.*{base}\)", text, re.MULTILINE)
        if found:
            _lose_imports(path, settings)
            return f"{path.as_posix()}:{found[-1]}"
    return None


def _lose_imports(path: Path, settings: Conversion) -> None:
    """Note what a file of `envs` imports that isn't there, and what the files of `envs` import that it builds on."""
    looked: set[Path] = set()
    left = [path]
    while left:
        file = left.pop()
        if file.resolve() not in looked:
            looked.add(file.resolve())
            lose_imports(file.as_posix(), r"(?:envs|verl|\.)", partial(_is_there, file, left), settings)


def _is_there(path: Path, more: list[Path], name: str) -> bool:
    """True for a stand-in and a file of the user's, which joins the files to look at."""
    package, root = place_of(path)
    module = resolve_name(name, package)
    own = own_spec(module, root)
    if own is not None and own.origin is not None:
        file = Path(own.origin)
        more.append(file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file)
    return own is not None or module in STAND_INS


def _tools(settings: Conversion, classes: dict[str, Any]) -> list[dict[str, Any]]:
    path = settings.get(f"{_ENV}.config_path", default="envs/configs/mcp_tools.pydata")
    mode, selected = settings.get(f"{_ENV}.mcp_mode"), settings.get(f"{_ENV}.tool_name_selected")
    policy = _policy(settings)
    own = bool(classes.get("tool_manager")) and classes["tool_manager"] not in REGISTERED
    tools: list[dict[str, Any]] = [{"use": "rlfactory", "options": deepcopy(classes)}] if own else []
    if isinstance(path, str) and path and (not own or settings.given(f"{_ENV}.config_path")):
        path = user_path(path)
        if mode not in (None, "stdio", "sse"):
            settings.lose(f"{_ENV}.mcp_mode")
        servers, others = _entries(path, settings)
        if servers:
            include = {"include": [str(name) for name in selected]} if isinstance(selected, list) and selected else {}
            tools.append({"use": "mcp", "options": {"config": path, **include}})
        tools += [] if own else _named_tools(others, settings)
    elif not own:
        settings.remark("environments.default.tools: the config names no config_path, so there are no tools")
    return [{**tool, "policy": policy} for tool in tools]


def _entries(path: str, settings: Conversion) -> tuple[bool, list[Any]]:
    """Whether a mcp_tools.pydata has servers, and its other entries: names, and dicts with `name`."""
    try:
        entries = parse_mcp_tools_config(path)
    except ConfigError as error:
        settings.remark(f"tools: {error.problems[0]}; it is taken for a list of MCP servers")
        return True, []
    servers = [entry for entry in entries if isinstance(entry, dict) and "mcpServers" in entry]
    for entry in entries:
        if entry not in servers and not _name(entry):
            settings.lose(f"{path}: {entry!r:.80}")
    return bool(servers), [entry for entry in entries if entry not in servers and _name(entry)]


def _named_tools(entries: list[Any], settings: Conversion) -> Iterator[dict[str, Any]]:
    """The toolsets of qwen_agent's tools, its own and those that files in `envs` register."""
    interpreters = [entry for entry in entries if _name(entry) == _INTERPRETER]
    unused = {key for entry in interpreters if isinstance(entry, dict) for key in entry} - {"name"}
    for key in sorted(unused):
        settings.lose(f"{_INTERPRETER}: {key}")
    if interpreters:
        # qwen_agent's is a Jupyter kernel: variables stay from call to call, and numpy and its like are there.
        yield {"use": f"python/{_INTERPRETER}", "options": {"persistent": True, "packages": ["*"]}}
    qwen = [entry for entry in entries if entry not in interpreters]
    if qwen:
        imports = sorted({file for entry in qwen if (file := _registering(settings, _name(entry))) is not None})
        named = f", as {', '.join(imports)} is" if imports else ""
        settings.remark(
            f"tools: {', '.join(map(_name, qwen))} are qwen_agent's: pip install 'toolrl-plugin-qwen-agent[qwen]'; a "
            f"file that registers one has to be in `imports`{named}"
        )
        yield {"use": "qwen_agent", "options": {"tools": qwen, **({"imports": imports} if imports else {})}}


def _name(entry: Any) -> str:
    name = entry.get("name") if isinstance(entry, dict) else entry
    return name if isinstance(name, str) else ""


def _registering(settings: Conversion, name: str) -> str | None:
    """The file in `envs`, beside the script or here, that registers a tool with qwen_agent."""
    mark = re.compile(rf"register_tool\(\s*(?:name\s*=\s*)?['\"]{re.escape(name)}['\"]")
    for file in (file for folder in (settings.folder, Path()) for file in sorted((folder / "envs").rglob("*.py"))):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if mark.search(file.read_text(encoding="utf-8")):
                return file.as_posix()
    return None


def _policy(settings: Conversion) -> dict[str, Any]:
    """Of calls. RLFactory cuts a turn's answers at their end."""
    tokens = settings.whole(f"{_ROLLOUT}.tool_response_length", default=16_384)
    policy: dict[str, Any] = {"max_output_tokens": tokens, "truncate": "head"}
    seconds = settings.number(f"{_ENV}.tool_timeout")
    if seconds:
        policy["timeout"] = seconds
    many = settings.whole(f"{_ENV}.max_concurrency", default=0, least=0)
    if settings.flag(f"{_ENV}.enable_limiter") and many:
        policy["concurrency"] = many
    return policy


def _reward(settings: Conversion, classes: dict[str, Any]) -> Any:
    options = deepcopy(classes)  # One object in three places would be written as references.
    if settings.flag(f"{_ENV}.use_process_reward"):
        options["step_rewards"] = True
    return {"use": "rlfactory", "options": options} if options else "rlfactory"
