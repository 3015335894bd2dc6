"""The built site: it needs nothing from the network, its search finds what pages say, every public module has a page.

`nox -s site` builds it and names its folder in TOOLRL_SITE. The build itself checks links and
anchors.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(os.environ.get("TOOLRL_SITE", ""))
pytestmark = pytest.mark.skipif("TOOLRL_SITE" not in os.environ, reason="`nox -s site` builds the site")
LOADED = re.compile(r"<(?:(?:script|img|iframe|source|video)\b[^>]* src|link\b[^>]* href)=[\"']?([^\"' >]*)")
"""What makes a browser load something."""


def test_nothing_is_loaded_from_elsewhere() -> None:
    pages, sheets = sorted(SITE.rglob("*.html")), sorted(SITE.rglob("*.css"))
    assert len(pages) > 100
    asked = {found for page in pages for found in LOADED.findall(page.read_text(encoding="utf-8"))}
    asked |= {found for sheet in sheets for found in re.findall(r"url\(([^)]*)\)", sheet.read_text(encoding="utf-8"))}
    assert {it for it in asked if re.match(r"[\"']?(https?:)?//", it)} == set()


def test_search_needs_no_server_and_finds_pages_and_modules() -> None:
    text = (SITE / "search" / "search_index.js").read_text(encoding="utf-8")
    found = json.loads(text.removeprefix("var __index = "))["docs"]
    entries = {it["location"]: it["text"] for it in found}
    # A how-to is found before the modules that hold the word.
    boosts = {it["location"]: it.get("boost", 1.0) for it in found}
    assert boosts["docs/howto/write-a-reward.html"] > 1 > boosts["docs/reference/api/toolrl.types.html"]
    assert "max_episode_tokens" in entries["docs/howto/compaction.html"]
    assert "docs/site/iframe-worker.js" in (SITE / "index.html").read_text(encoding="utf-8")
    assert "sync or async" in entries["docs/reference/api/toolrl.tools.html#toolrl.tools.tool"]


def test_every_public_module_has_a_page_with_its_documentation() -> None:
    listed = (
        (ROOT / "docs" / "reference" / "public-modules.md").read_text(encoding="utf-8").partition("## For parts")[0]
    )
    modules = re.findall(r"^\| `([\w.]+)` \|", listed, re.MULTILINE)
    for module in modules:
        page = (SITE / "docs" / "reference" / "api" / f"{module}.html").read_text(encoding="utf-8")
        assert page.count('class="doc ') > 1, f"{module}: an empty page"
