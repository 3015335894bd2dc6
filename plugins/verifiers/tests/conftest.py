"""The environments of `support` can be imported by their names, as installed ones can."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))
