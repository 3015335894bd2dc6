"""Which paths of the machine an isolated program needs to see: shared libraries, the interpreter, packages."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

from toolrl.errors import ConfigError
from toolrl_plugin_python.keeper_process import interpreter

_HIDDEN = {"/", "/dev", "/proc", "/scratch", "/sys", "/tmp"}
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


def system_libraries() -> list[str]:
    """Folders of the system's shared libraries, and the loader's list of them."""
    triplet = sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"
    own = [path for path in (f"/lib/{triplet}", f"/usr/lib/{triplet}") if Path(path).is_dir()]
    folders = [*own, "/lib64", "/usr/lib64"] if own or Path("/usr/lib64").is_dir() else ["/lib", "/usr/lib"]
    return [path for path in (*folders, "/etc/ld.so.cache") if Path(path).exists()]


def interpreter_paths() -> list[str]:
    """The interpreter's binary, its library, the standard library, and the time zones that this reads."""
    found = [interpreter(), *_standard_library(), "/usr/share/zoneinfo"]
    if sys.base_prefix not in ("/", "/usr"):
        # A prefix of its own: what lies in its lib belongs to the interpreter (libpython, and conda's libraries).
        found += [f"{sys.base_prefix}/{name}" for name in ("lib", "lib64")]
    return [path for path in found if Path(path).exists()]


def _standard_library() -> list[str]:
    base = {"base": sys.base_prefix, "installed_base": sys.base_prefix}
    platform = {"platbase": sys.base_exec_prefix, "installed_platbase": sys.base_exec_prefix}
    return [sysconfig.get_path(name, vars={**base, **platform}) for name in ("stdlib", "platstdlib")]


def search_path() -> list[str]:
    """`sys.path` of an interpreter that has the standard library alone."""
    stdlib, platform = _standard_library()
    archive = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    return list(dict.fromkeys([str(Path(stdlib).parent / archive), stdlib, f"{platform}/lib-dynload"]))


def package_paths(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """What has to be readable for these distributions with all they require, and the folders to search. `*` stands for
    everything that is installed beside toolrl. Raises ConfigError."""
    if "*" in names:
        folders = list(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")))
        return folders, folders
    readable: dict[str, None] = {}
    folders_of: dict[str, None] = {}
    for distribution in _with_requirements(names):
        root = Path(str(distribution.locate_file(""))).resolve()
        folders_of[str(root)] = None
        for part in _top_level(distribution):
            readable[str(root / part)] = None
    return [path for path in readable if Path(path).exists()], list(folders_of)


def _with_requirements(names: Iterable[str]) -> list[importlib.metadata.Distribution]:
    """The distributions and, of what they require, all that is installed."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [(name, True) for name in names]
    while waiting:
        name, is_needed = waiting.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in found:
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except (importlib.metadata.PackageNotFoundError, ValueError):
            if is_needed:
                raise ConfigError(
                    f"packages: {name!r} isn't installed beside toolrl",
                    hint=f"pip install {name}, or leave it out. Names are distributions': scikit-learn, not sklearn.",
                ) from None
            continue
        found[key] = distribution
        for line in distribution.requires or ():
            match = _NAME.match(line)
            if match is not None and "extra ==" not in line.replace("'", '"'):
                waiting.append((match[0], False))
    return list(found.values())


def _top_level(distribution: importlib.metadata.Distribution) -> list[str]:
    """Names in the folder of packages that belong to a distribution."""
    parts = {file.parts[0] for file in distribution.files or () if len(file.parts) > 1 or file.suffix in (".py", ".so")}
    if distribution.files is None:
        raise ConfigError(f"packages: the files of {distribution.name!r} aren't recorded, so they can't be shown")
    return sorted(parts - {"..", "/", "__pycache__"})


def check_readable(readable: Iterable[Path]) -> None:
    """Raises ConfigError for a path that can't be shown inside."""
    for path in readable:
        if not path.is_absolute() or not path.exists():
            raise ConfigError(f"readable: {str(path)!r}: expected an absolute path that exists")
        needed = 0o005 if path.is_dir() else 0o004
        if os.geteuid() == 0 and path.stat().st_mode & needed != needed:
            raise ConfigError(
                f"readable: {str(path)!r} isn't readable by everyone, and where root runs it, code is another user's",
                hint=f"chmod o+rX {path}",
            )
        if str(path.resolve()) in _HIDDEN:
            raise ConfigError(
                f"readable: {str(path)!r} can't be shown to isolated code, which has its own there or nothing",
                hint="Name the folders in it that are needed.",
            )


def other_packages(shown: Iterable[str]) -> list[str]:
    """Folders of packages inside of the interpreter's own, unless these paths show them: there a system keeps all that
    is installed, the run's own code perhaps."""
    prefix = Path(sys.base_prefix)
    found = [path for name in ("site", "dist") for path in prefix.glob(f"lib*/python*/{name}-packages")]
    asked = [Path(path).resolve() for path in shown]
    return sorted({str(path) for path in found if not any(path.resolve().is_relative_to(it) for it in asked)})
