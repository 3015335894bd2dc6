"""Puts the page maker and this folder's helper on the path."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parents[1] / "docs" / "reference"):
    sys.path.insert(0, str(folder))
