"""The repository's Markdown pages, cut into what the tests look at: fenced blocks, inline code, links, headings."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_WHERE = ("*.md", "core/*.md", "plugins/*/*.md", "docs/**/*.md", "tests/**/*.md")
_FENCE = re.compile(r"(?P<indent> *)(?P<fence>`{3,})(?P<language>\w*)")
_INLINE = re.compile(r"``.*?``|`[^`\n]*`")
_LINK = re.compile(r"!?\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)", re.MULTILINE)
_FILE = re.compile(r"# ([\w./-]+\.(?:py|toml))\n")


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: Path
    line: int
    """Of its first line of content, from 1."""
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Page:
    """One page."""

    path: Path
    blocks: tuple[Block, ...]
    prose: str
    """All outside of fenced blocks, line numbers kept."""

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))

    def inline(self) -> Iterator[str]:
        """Inline code."""
        for match in _INLINE.finditer(self.prose):
            yield match.group().strip("`").strip()

    def links(self) -> Iterator[str]:
        """Targets of links and pictures."""
        for match in _LINK.finditer(_INLINE.sub("", self.prose)):
            yield match[1] or match[2]

    def anchors(self) -> set[str]:
        """Anchors of headings, by GitHub's rules."""
        found: set[str] = set()
        for match in re.finditer(r"^#{1,6} +(.+?) *#*$", self.prose, re.MULTILINE):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1]).lower()
            slug = re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")
            number = 0
            while (name := f"{slug}-{number}" if number else slug) in found:
                number += 1
            found.add(name)
        return found | set(re.findall(r'<a (?:id|name)="([^"]+)"', self.prose))


@cache
def pages() -> tuple[Page, ...]:
    """Every page of the repository."""
    paths = {path for pattern in _WHERE for path in ROOT.glob(pattern)}
    hidden = {path for path in paths if any(part.startswith(".") for part in path.relative_to(ROOT).parts)}
    return tuple(read_page(path) for path in sorted(paths - hidden))


def read_page(path: Path) -> Page:
    """Cut a page. Raises ValueError for a fence that isn't closed."""
    blocks, prose = [], []
    fence, language, start, content = "", "", 0, list[str]()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = _FENCE.match(line)
        if not fence and match:
            fence, language, start, content = match["fence"], match["language"], number + 1, []
            indent = len(match["indent"])
            prose.append("")
        elif fence and line.strip() == fence:
            blocks.append(Block(path, start, language, "\n".join(content) + "\n"))
            fence = ""
            prose.append("")
        elif fence:
            content.append(line[indent:] if not line[:indent].strip() else line)
            prose.append("")
        else:
            prose.append(line)
    if fence:
        raise ValueError(f"{path}:{start - 1}: this fence isn't closed")
    return Page(path, tuple(blocks), "\n".join(prose))


def blocks(*languages: str) -> list[Block]:
    """All blocks in one of these languages."""
    return [block for page in pages() for block in page.blocks if block.language in languages]


# Packages that a page shows file by file: each block begins with a comment that names its file.


@dataclass(frozen=True)
class ShownPlugin:
    """A plugin that a page shows as a whole."""

    page: Page
    project: dict[str, object]
    """The table `[project]` of its pyproject."""
    files: dict[str, str]
    """Importable files by their path below the source folder."""

    def __str__(self) -> str:
        return str(self.page)

    @property
    def entry_points(self) -> dict[str, str]:
        points = self.project["entry-points"]
        assert isinstance(points, dict)
        return dict(points["toolrl.plugins"])

    def install(self, folder: Path) -> None:
        """Lay the files down with the metadata that pip would write."""
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        distribution, version = str(self.project["name"]), str(self.project["version"])
        info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        needs = self.project.get("dependencies", [])
        assert isinstance(needs, list)
        lines = ["Metadata-Version: 2.1", f"Name: {distribution}", f"Version: {version}"]
        (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {need}" for need in needs)]) + "\n")
        points = "\n".join(f"{name} = {module}" for name, module in self.entry_points.items())
        (info / "entry_points.txt").write_text(f"[toolrl.plugins]\n{points}\n")


@cache
def shown_plugins() -> tuple[ShownPlugin, ...]:
    """The plugins that pages show with their pyproject."""
    found = []
    for page in pages():
        files = {match[1]: block.text for block in page.blocks if (match := _FILE.match(block.text))}
        if "pyproject.toml" in files:
            project = tomllib.loads(files.pop("pyproject.toml"))["project"]
            found.append(ShownPlugin(page, project, {name.removeprefix("src/"): text for name, text in files.items()}))
    return tuple(found)
