"""The reference pages are what `make.py` writes of the code, and it needs no torch for that."""

from __future__ import annotations

import subprocess
import sys

from doc_pages import ROOT


def test_the_pages_are_what_the_code_gives_without_torch() -> None:
    script = (
        "import runpy, sys; sys.argv = ['make.py', '--check']\n"
        "try: runpy.run_path('docs/reference/make.py', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code, 'Run: python docs/reference/make.py'\n"
        "assert not {'torch', 'transformers', 'ray', 'vllm'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
