"""What tests that cross packages share: a tiny model, the command line, plugins written on the spot, trained runs.

Everything is made here: the model by the quickstart's own script, the data by the plugin `math`. Runs that several
tests look at are trained once a session. Imports of torch wait until a test asks for one of them.
"""

from __future__ import annotations

import copy
import importlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
NEEDED = (
    "torch",
    "transformers",
    *(f"toolrl_plugin_{name}" for name in ("qwen", "calculator", "math", "transformers")),
)

BASE: dict[str, Any] = {
    "model": {"path": "model"},
    "data": {
        "train": {"use": "arithmetic", "options": {"split": "train", "size": 40, "kinds": ["tiny_sum"]}},
        "eval": {"use": "arithmetic", "options": {"split": "heldout", "size": 12, "kinds": ["tiny_sum"]}},
    },
    "environments": {"default": {"tools": ["calculator"], "rewards": ["exact"], "max_turns": 3}},
    "rollout": {"max_turn_tokens": 32, "max_episode_tokens": 256},
    "algorithm": {"preset": "dapo", "group_size": 4},
    "trainer": {"steps": 3, "prompts_per_step": 4, "learning_rate": 1.0e-3, "save_every": 1},
    "evaluation": {"temperature": 0.0},
    "observers": [],
    "run": {"name": "grpo"},
    "device": "cpu",
    "threads": 1,
}
"""A config of a few seconds. Its paths are relative to the folder that commands run in."""


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` put over it, section by section; None takes a key out."""
    result = dict(copy.deepcopy(base))
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), dict) and "use" not in value:
            result[key] = merged(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result


@dataclass
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        """What it printed; fails where anything but JSON is on stdout."""
        return json.loads(self.stdout)


class Workplace:
    """A folder that commands run in, with a tiny model in `model`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def config(self, changes: Mapping[str, Any] | None = None, *, name: str = "config") -> str:
        """Write the base config with these changes; its file name."""
        text = yaml.safe_dump(merged(BASE, changes or {}), sort_keys=False)
        (self.folder / f"{name}.yaml").write_text(text, encoding="utf-8")
        return f"{name}.yaml"

    def run(self, name: str) -> Any:
        """A run's folder, opened for reading."""
        from toolrl.runs.folder import RunFolder

        return RunFolder.open(self.folder / "runs" / name)

    def train(self, changes: Mapping[str, Any], *arguments: str, site: PluginSite | None = None) -> Any:
        """The run that `toolrl train` makes of the base config with these changes."""
        done = self.toolrl("train", self.config(changes), "--json", *arguments, site=site)
        assert done.returncode == 0, done.stderr
        return self.run(merged(BASE, changes)["run"]["name"])

    def site(self, name: str = "site") -> PluginSite:
        """A folder for plugins, empty at first."""
        return PluginSite(self.folder / name)

    def start(
        self, *arguments: str, stderr: Path, site: PluginSite | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Begin `toolrl ARGUMENTS` in a process of its own; what it says on stderr goes to a file."""
        with stderr.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "toolrl", *arguments],
                cwd=self.folder,
                env=environment(site, env),
                stdout=subprocess.DEVNULL,
                stderr=output,
            )

    def toolrl(self, *arguments: str, site: PluginSite | None = None, env: Mapping[str, str] | None = None) -> Done:
        """`toolrl ARGUMENTS` in a process of its own, to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "toolrl", *arguments],
            cwd=self.folder,
            env=environment(site, env),
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)


def environment(site: PluginSite | None = None, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of a process that sees a site's plugins; none of toolrl's own are passed on."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("TOOLRL_", "PYTHONPATH"))}
    path = os.pathsep.join(filter(None, [str(site.folder) if site else "", os.environ.get("PYTHONPATH", "")]))
    return {**clean, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}


@pytest.fixture(scope="session")
def run_script() -> Callable[..., str]:
    """`run_script(folder, script, *arguments, path="")`: what Python prints that runs a script in a folder, with `path`
    before PYTHONPATH; fails where it does."""

    def run(folder: Path, *words: object, path: str = "") -> str:
        path = os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH", "")]))
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        command = [sys.executable, *map(str, words)]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    return run


@pytest.fixture(scope="session")
def process_environment() -> Callable[..., dict[str, str]]:
    """`environment`, for tests that start processes themselves."""
    return environment


class PluginSite:
    """A folder that looks like site-packages: plugins, each with the metadata that an installed wheel has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, modules: Mapping[str, str]) -> None:
        """A plugin whose package has these modules; `plugin` is the entry point."""
        package = self.folder / f"toolrl_plugin_{name}"
        package.mkdir()
        for module, source in {"__init__": "", **modules}.items():
            (package / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        info = self.folder / f"{package.name}-1.0.dist-info"
        info.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: toolrl-plugin-{name}\nVersion: 1.0\nRequires-Dist: toolrl\n"
        (info / "METADATA").write_text(metadata, encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[toolrl.plugins]\n{name} = {package.name}.plugin\n", encoding="utf-8")


@pytest.fixture
def plugin_site(tmp_path: Path) -> PluginSite:
    """An empty site."""
    return PluginSite(tmp_path / "site")


SCRIPTED = {
    "plugin": """
        from toolrl import Component, hookimpl

        @hookimpl
        def toolrl_engines():
            yield Component("script", "toolrl_plugin_script.engine:Script", summary="Says what a file holds.")
    """,
    "engine": """
        import json
        from collections import Counter
        from pathlib import Path
        from toolrl.types import Generation

        class Script:
            def __init__(self, options, context):
                self._tokenizer = context.tokenizer
                self._turns = json.loads(Path("script.json").read_text())
                self._said = Counter()

            async def start(self): ...
            async def stop(self): ...
            async def close(self, session): ...
            async def update_weights(self, weights, version): ...

            async def generate(self, prompt, sampling, *, session, media=()):
                turn = self._turns[self._said[session]]
                self._said[session] += 1
                assert len(media) == turn.get("media", 0), media
                end = sampling.stop_token_ids[0]
                ids = (*self._tokenizer.encode(turn["text"]), end)
                return Generation(ids, (-1.0,) * len(ids), "stop", end, (0,) * len(ids))
    """,
}


@pytest.fixture
def scripted(plugin_site: PluginSite) -> Callable[..., None]:
    """`scripted(folder, {"text": …, "media": 2}, …)`: the engine `script` says these turns in each episode that a
    command in the folder plays, and fails where it isn't given as many images."""

    def install(folder: Path, *turns: Mapping[str, Any]) -> None:
        (folder / "script.json").write_text(json.dumps(turns), encoding="utf-8")
        plugin_site.add("script", SCRIPTED)

    return install


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the quickstart's model and tokenizer, random weights."""
    for name in NEEDED:
        pytest.importorskip(name)
    import transformers

    transformers.utils.logging.disable_progress_bar()
    maker = runpy.run_path(str(ROOT / "docs" / "examples" / "quickstart" / "make_model.py"))
    folder = tmp_path_factory.mktemp("tiny") / "model"
    tokenizer = maker["make_tokenizer"]()
    maker["qwen3"](tokenizer, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Workplace:
    """The session's own workplace: tests read its runs and add their own, they change none."""
    folder = tmp_path_factory.mktemp("workplace")
    (folder / "model").symlink_to(tiny_model)
    return Workplace(folder)


@dataclass
class Ran:
    """A command that ran, and what it left."""

    done: Done
    folder: Any
    config: str


@pytest.fixture(scope="session")
def warm(workplace: Workplace) -> Ran:
    """`toolrl sft`: the model knows the form of a call and answers most tasks; run `warm`."""
    demonstrations = {"kinds": ["tiny_sum"], "call_share": 0.8, "no_tool_share": 0.0}
    sft = {
        "data": {"use": "arithmetic_demos", "options": demonstrations},
        "steps": 40,
        "batch_size": 32,
        "learning_rate": 3.0e-3,
        "warmup_steps": 5,
    }
    config = workplace.config({"sft": sft, "run": {"name": "warm"}}, name="warm")
    done = workplace.toolrl("sft", config, "--json")
    assert done.returncode == 0, done.stderr
    return Ran(done, workplace.run("warm"), config)


@pytest.fixture(scope="session")
def trained(workplace: Workplace, warm: Ran) -> Ran:
    """`toolrl train`: three steps of GRPO from the run `warm`; run `grpo`."""
    config = workplace.config({"model": {"path": "runs/warm"}}, name="grpo")
    done = workplace.toolrl("train", config, "--json")
    assert done.returncode == 0, done.stderr
    return Ran(done, workplace.run("grpo"), config)


@pytest.fixture
def own_place(workplace: Workplace, warm: Ran, tmp_path: Path) -> Workplace:
    """A workplace of the test's own, where the run `warm` can be read."""
    folder = tmp_path / "place"
    (folder / "runs").mkdir(parents=True)
    for name in ("model", "runs/warm"):
        (folder / name).symlink_to(workplace.folder / name)
    return Workplace(folder)


Here = Callable[..., Done]


@pytest.fixture
def here(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    """`toolrl ARGUMENTS` in this process, in the session's workplace or in another `place`: without the seconds that
    importing torch takes."""
    from toolrl.cli.main import main
    from toolrl.plugins.registry import load_registry

    monkeypatch.chdir(workplace.folder)

    def run(*arguments: str, site: PluginSite | None = None, place: Workplace | None = None) -> Done:
        if place is not None:
            monkeypatch.chdir(place.folder)
        if site is not None:
            monkeypatch.syspath_prepend(str(site.folder))
        load_registry.cache_clear()
        stdout, stderr = io.StringIO(), io.StringIO()
        with redirect_stdout(stdout), redirect_stderr(stderr):
            try:
                status = main(list(arguments))
            except SystemExit as stop:  # argparse
                status = int(stop.code or 0)
        return Done(status, stdout.getvalue(), stderr.getvalue())

    yield run
    load_registry.cache_clear()
    importlib.invalidate_caches()


@pytest.fixture(scope="session")
def read_report() -> Callable[[Any], dict[str, Any]]:
    """`read_report(folder)`: the data that a run's report holds for its scripts."""

    def read(folder: Any) -> dict[str, Any]:
        page = folder.report_path.read_text(encoding="utf-8")
        found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
        assert found is not None, "the report holds no data"
        data: dict[str, Any] = json.loads(found[1])
        return data

    return read


@pytest.fixture(scope="session")
def steps_of() -> Callable[[Any, str], Sequence[int]]:
    """`steps_of(folder, kind)`: the steps in metrics.jsonl of one kind, in the order they stand there."""
    return lambda folder, kind: [line.step for line in folder.metrics_lines(kind)]
