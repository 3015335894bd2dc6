"""`toolrl audit` on the session's own run: it has no findings."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def test_a_run_is_clean(here: Callable[..., Any], trained: Any) -> None:
    done = here("audit", "runs/grpo", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["findings"]) == (0, []), done.stdout
    assert report["checks"]["continuation"]["rows"] == report["checks"]["masks"]["rows"] == report["rows"]
