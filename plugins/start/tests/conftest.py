"""Core's fixtures of installed distributions that a test writes itself."""

from __future__ import annotations

import runpy
from pathlib import Path

_CORE = runpy.run_path(str(Path(__file__).parents[3] / "core" / "tests" / "conftest.py"))
site, troubled_site = _CORE["site"], _CORE["troubled_site"]
