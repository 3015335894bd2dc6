"""Every relative link of every page leads somewhere, its anchor included, and the site shows pages as a forge does."""

from __future__ import annotations

import pytest
from doc_pages import ROOT, Page, pages, read_page


@pytest.mark.parametrize("page", pages(), ids=str)
def test_links_lead_somewhere(page: Page) -> None:
    broken = [link for link in page.links() if not _leads_somewhere(page, link)]
    assert broken == []


def _leads_somewhere(page: Page, link: str) -> bool:
    if link.startswith(("http://", "https://", "mailto:")):
        return True
    name, _, anchor = link.partition("#")
    path = (page.path.parent / name).resolve() if name else page.path
    if not path.exists():
        return False
    return not anchor or (path.suffix == ".md" and anchor in read_page(path).anchors())


def test_every_page_has_its_place_in_the_contents() -> None:
    contents = ROOT / "docs" / "README.md"
    listed = {(contents.parent / link).resolve() for link in read_page(contents).links()}
    assert [str(page) for page in pages() if page.path.parents[1] == ROOT / "docs" and page.path not in listed] == []


def test_every_example_is_listed() -> None:
    listed = (ROOT / "docs" / "examples" / "README.md").read_text(encoding="utf-8")
    folders = {path.parent.name for path in ROOT.glob("docs/examples/*/*") if path.is_file()}
    assert {name for name in folders if f"[`{name}`]" not in listed} <= {"common"}
