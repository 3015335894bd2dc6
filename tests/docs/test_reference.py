"""The reference pages are what `make.py` writes of the code, and it needs no torch for that."""

from __future__ import annotations

import subprocess
import sys

import make
from doc_pages import ROOT


def test_the_pages_are_what_the_code_gives() -> None:
    found = make.differences()
    assert not found, "\n".join(["Run: python docs/reference/make.py", *found])


def test_the_pages_need_no_torch() -> None:
    script = (
        "import runpy, sys; sys.argv = ['make.py', '--check']\n"
        "try: runpy.run_path('docs/reference/make.py', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'ray', 'vllm'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
