"""The table of model families in the docs is what the templates give now."""

from __future__ import annotations

import families_table
import pytest
from chat_families import REAL_NAMES, TRL_NAMES

TOKENIZERS = {"deepseek_v3", "gpt2", "llama3_2", "qwen2_5", "qwen3"}


def test_the_table_is_current() -> None:
    page = families_table.PAGE.read_text(encoding="utf-8")
    if set(REAL_NAMES) != TOKENIZERS or not TRL_NAMES:
        pytest.skip("the table needs trl, and the five tokenizers in TOOLRL_TOKENIZERS")
    if families_table.bundle() not in page:
        pytest.skip(f"the table was made with another version than {families_table.bundle()}")
    own, _, bundled = page.partition(families_table.BEGIN)[2].partition(families_table.END)[0].partition("bundles:")
    for origin, half in (("tokenizer", own), ("trl", bundled)):
        rows = [line.strip("| ").partition(" | ") for line in half.splitlines() if line.startswith("| `")]
        assert rows
        for names, _, cells in rows:
            # One template of each row: all of them take as long as the rest of the tests.
            name = names.split(", ")[0].strip("`")
            assert str(families_table.row(f"{origin}:{name}")) == cells, name


@pytest.mark.skipif(not TRL_NAMES, reason="no trl is installed")
def test_every_bundled_template_is_in_the_table() -> None:
    page = families_table.PAGE.read_text(encoding="utf-8")
    if families_table.bundle() not in page:
        pytest.skip(f"the table was made with another version than {families_table.bundle()}")
    assert [name for name in TRL_NAMES if f"`{name}`" not in page] == []
