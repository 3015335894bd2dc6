"""Makes the reference pages from the code, or checks that they are what the code gives.

    python docs/reference/make.py            # write the pages
    python docs/reference/make.py --check    # exit status 1, with a diff, where a page differs

Nothing is read but this repository, so the pages don't depend on what else is installed; torch isn't needed. One module
of `pagemaker` makes one page.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":  # A test that imports this uses what is installed.
    REPOSITORY = HERE.parents[1]
    for folder in (HERE, REPOSITORY / "core" / "src", *REPOSITORY.glob("plugins/*/src")):
        sys.path.insert(0, str(folder))

from pagemaker import (  # noqa: E402 - the folder has to be on the path first
    cli_page,
    config_page,
    hooks_page,
    metrics_page,
    plugins_page,
    run_folder_page,
    typed_config,
    types_page,
)
from pagemaker.source import CORE  # noqa: E402

PAGES = {
    "config.md": config_page.make,
    "cli.md": cli_page.make,
    "hooks.md": hooks_page.make,
    "types.md": types_page.make,
    "plugins.md": plugins_page.make,
    "metrics.md": metrics_page.make,
    "run-folder.md": run_folder_page.make,
    "first_party.json": plugins_page.first_party,
    "typed.py": typed_config.make,
}
"""File name to what makes its text."""
ELSEWHERE = {"first_party.json": CORE / "plugins", "typed.py": CORE / "config"}
"""Files that toolrl itself reads."""


def differences(folder: Path | None = None) -> list[str]:
    """For each page that isn't what the code gives, the diff from the file to what it should be."""
    found = []
    for name, make in PAGES.items():
        path = (folder or ELSEWHERE.get(name, HERE)) / name
        old = path.read_text(encoding="utf-8") if path.is_file() else ""
        diff = difflib.unified_diff(
            old.splitlines(), make().splitlines(), f"{path} (as it is)", f"{path} (by the code)", lineterm="", n=2
        )
        text = "\n".join(diff)
        if text:
            found.append(text)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where a page differs")
    if not parser.parse_args().check:
        for name, make in PAGES.items():
            (ELSEWHERE.get(name, HERE) / name).write_text(make(), encoding="utf-8")
        return 0
    found = differences()
    for diff in found:
        print(diff + "\n")
    if found:
        print(f"{len(found)} pages differ from the code. Run: python docs/reference/make.py", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
