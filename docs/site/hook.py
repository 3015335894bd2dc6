"""Makes a site of the repository's pages: same paths, navigation from docs/README.md, a page per public module.

The pages stay plain Markdown: a link to a folder leads to its README, as on a forge.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
CONTENTS = ROOT / "docs" / "README.md"
MODULES = ROOT / "docs" / "reference" / "public-modules.md"
PUBLISHED = (
    *("*.md", "core/README.md", "plugins/*/README.md", "docs/*.md", "docs/*/*.md"),
    *("docs/images/*", "docs/site/*", "docs/examples/**/*"),
)
BOOSTS = {"docs/tutorial/": 4.0, "docs/howto/": 4.0, "docs/reference/api/": 0.1, "CHANGELOG.md": 0.2}
"""Weights of pages in the search, by the start of their path: a reader looks for a task first, for a class last."""
_LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")
_MODULE = re.compile(r"^\| `(toolrl[\w.]*)` \|", re.MULTILINE)


def on_config(config: MkDocsConfig) -> None:
    """Anchors of headings as a forge makes them."""
    config.mdx_configs["toc"]["slugify"] = lambda text, _: (
        re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
    )


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The theme's files, the repository's pages, and a page for each public module."""
    found = Files([file for file in files if file.src_dir != config.docs_dir])
    for path in sorted({path for pattern in PUBLISHED for path in ROOT.glob(pattern)}):
        if path.is_file() and "__pycache__" not in path.parts:
            found.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    for path in sorted(ROOT.glob("docs/*/*.ipynb")):
        uri = path.relative_to(ROOT).with_suffix(".md").as_posix()
        found.append(File.generated(config, uri, content=_notebook(path)))
    for module in _modules():
        found.append(File.generated(config, _module_page(module), content=f"# `{module}`\n\n::: {module}\n"))
    config.nav = _navigation()
    return found


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with links that lead to pages of the site: READMEs of folders, notebooks, modules where listed."""
    uri = page.file.src_uri
    page.meta["search"] = {"boost": next((boost for start, boost in BOOSTS.items() if uri.startswith(start)), 1.0)}
    if ROOT / uri == MODULES:
        markdown = _MODULE.sub(
            lambda it: f"| [`{it[1]}`](api/{it[1]}.md) |" if it[1] in _modules() else it[0], markdown
        )

    def to_readme(link: re.Match[str]) -> str:
        if link[1].endswith(".ipynb"):
            return f"]({link[1].removesuffix('.ipynb')}.md)"
        readme = f"{link[1].rstrip('/')}/README.md"
        return f"]({readme}{link[2] or ''})" if ((ROOT / uri).parent / readme).is_file() else link[0]

    return _LINK.sub(to_readme, markdown)


def _modules() -> list[str]:
    """The modules that any plugin may import."""
    return _MODULE.findall(MODULES.read_text(encoding="utf-8").partition("\n## For parts of the framework")[0])


def _module_page(module: str) -> str:
    return f"docs/reference/api/{module}.md"


def _navigation() -> list[Any]:
    """Sections, subsections and pages in the order of docs/README.md, and the packages."""
    navigation: list[Any] = [{"toolrl": ["README.md", "docs/README.md", "CHANGELOG.md", "CONTRIBUTING.md"]}]
    for section in re.split(r"^## ", CONTENTS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        first, *inner = re.split(r"^### ", section, flags=re.MULTILINE)
        items: list[Any] = _pages(first) + [{text.partition("\n")[0]: _pages(text)} for text in inner]
        if items:
            navigation.append({first.partition("\n")[0]: items})
        if first.startswith("Reference"):
            items.append({"Modules": [{module: _module_page(module)} for module in _modules()]})
    packages = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("plugins/*/README.md"))
    return [*navigation, {"Packages": ["core/README.md", *packages]}]


def _pages(text: str) -> list[Any]:
    links = re.findall(r"\[([^\]]+)\]\(([\w./-]+)\.(?:md|ipynb)\)", text)
    return [{title: f"docs/{target}.md"} for title, target in links]


def _notebook(path: Path) -> str:
    """A notebook as Markdown: its cells, and what they printed."""
    parts: list[str] = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            text = "".join(output.get("text") or output.get("data", {}).get("text/plain", ()))
            parts += [f"```text\n{text.rstrip()}\n```"] if text.strip() else []
    return "\n\n".join(parts)
