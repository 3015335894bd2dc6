"""A component's target: what it can't give is a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolrl import Component
from toolrl.errors import ComponentLoadError


@pytest.mark.parametrize("raised", ["SystemExit(3)", "type('Panic', (BaseException,), {})('out of bounds')"])
def test_a_target_whose_module_ends_the_program_is_a_load_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: str
) -> None:
    (tmp_path / "module_that_exits.py").write_text(f"raise {raised}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ComponentLoadError, match="can't be imported: (SystemExit: 3|Panic: out of bounds)"):
        Component("exits", "module_that_exits:thing").load()
