"""README and docs/: their text without code, their headings, links, code blocks, and commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


class Command(NamedTuple):
    """A command of a page: its words, without redirections and comments."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in a language."""
    return [code for kind, code in FENCE.findall(page.read_text(encoding="utf-8")) if kind == language]


def commands() -> list[Command]:
    """Every command of every `sh` block, in order."""
    found = []
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                found += [Command(name, words) for words in _parts(shlex.split(line, comments=True))]
    return found


def _parts(words: list[str]) -> Iterator[tuple[str, ...]]:
    """The commands of one line, which && and ; separate."""
    part: list[str] = []
    for word in [*words, "&&"]:
        if word in ("&&", ";"):
            if part:
                yield tuple(part[: part.index(">")] if ">" in part else part)
            part = []
        else:
            part.append(word)


def links(page: Path) -> list[str]:
    """Where a page links to, within the repository."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return [link for link in LINK.findall(text) if not link.startswith(("http:", "https:", "mailto:"))]


def anchors(page: Path) -> set[str]:
    """The ids of a page's headings, as the site makes them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        name = re.sub(r"[^\w\s-]", "", re.sub(r"[`*]", "", heading)).strip().lower()
        slug = re.sub(r"[-\s]+", "-", name)
        count = 0
        while (each := f"{slug}_{count}" if count else slug) in found:
            count += 1
        found.add(each)
    return found
