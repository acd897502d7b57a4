"""Reads descriptions from the source: the string below each field of a dataclass, and the paragraphs of docstrings."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import sys
import textwrap
import typing

SENTENCE_END = re.compile(r"(?<=\.)(?<!\bal\.)\s+(?!\d)")


@functools.cache
def field_texts(kind: type) -> dict[str, str]:
    """Name -> text of the fields of a dataclass and of those it extends, in one line each.

    A text is the string below a field, or the `Doc` of its type.
    """
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if dataclasses.is_dataclass(each):
            found |= _classes(each.__module__).get(each.__name__, {})
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        for marker in getattr(hint, "__metadata__", ()):
            found[name] = getattr(marker, "documentation", found.get(name, ""))
    return {name: " ".join(text.split()) for name, text in found.items()}


def first_sentence(text: str) -> str:
    """The first sentence of a text in one line; 'et al.' ends none."""
    return SENTENCE_END.split(text, maxsplit=1)[0]


def paragraphs(text: str | None) -> list[str]:
    """The paragraphs of a docstring in one line each; indented lines stay as they are, as a paragraph of their own."""
    parts = re.split(r"\n[^\S\n]*\n", inspect.cleandoc(text or ""))
    runs = (
        (indented, list(lines))
        for part in parts
        for indented, lines in itertools.groupby(part.splitlines(), key=lambda line: line.startswith(" "))
    )
    return ["\n".join(lines) if indented else " ".join(" ".join(lines).split()) for indented, lines in runs if lines]


def flowing(text: str, width: int, first: str = "", others: str | None = None) -> list[str]:
    """A paragraph in lines of at most `width` columns; an indented one keeps its lines.

    Args:
        text: the paragraph in one line.
        width: most columns of a line; a longer word has a line of its own.
        first: what the first line begins with.
        others: what the other lines begin with (None: the same).
    """
    if text.startswith(" "):
        return textwrap.indent(text, first).splitlines()
    below = first if others is None else others
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=below, break_long_words=False, break_on_hyphens=False
    )


@functools.cache
def _classes(module: str) -> dict[str, dict[str, str]]:
    """Class -> field -> text, for all classes of a module; empty if its source cannot be read."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):  # made in a notebook, or while the program runs
        return {}
    return {node.name: dict(_fields(node.body)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _fields(body: list[ast.stmt]) -> typing.Iterator[tuple[str, str]]:
    for field, below in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            value = below.value if isinstance(below, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield field.target.id, value.value
