"""Settings in a file of YAML or TOML, for --config: names as on the command line, each with the line that it is in.

YAML is read as a tree of nodes with lines and tags, of which only the texts are used; the type of a setting says what
its text means. So `1e-3` is a number, and `no` may be the name of a game, in every version of YAML.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from ddrl.errors import UsageError, read_as
from ddrl.files import read_regular
from ddrl.option_values import item_of, value_of
from ddrl.options.command_line import Option, words_of
from ddrl.options.other_libraries import meant_by

LARGEST_BYTES = 1_000_000
TAGS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map", "timestamp"))
NULL = "tag:yaml.org,2002:null"  # of a blank value
REMEDY = "see docs/configuration.md"
COMMAND_LINE_ALONE = ("config", "print-config", "resume", "resume-or-start")
"""Options that a file of settings cannot have."""
READ_FIRST = ("algorithm", "preset", "plugin")
"""Options on which it depends what the others are."""
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./+-]*")
TOML_NAME = re.compile(r"\s*\[*\s*[\"']?([^\s\"'=.\]]+)[\"']?\s*[=.\]]")
RESERVED = ("true", "false", "yes", "no", "on", "off", "null", "none", "y", "n")  # words of YAML itself


class Entry(NamedTuple):
    """A setting in a file: the text of its value or of each value of a list, its line, from 1, and whether it is
    blank."""

    value: str | list[str]
    line: int
    null: bool = False


@dataclasses.dataclass(frozen=True)
class ConfigFile:
    """The settings in a file, by names with dashes."""

    path: str
    entries: Mapping[str, Entry]

    def text(self, name: str) -> str | None:
        """The text of a setting's value; None if it is not there, is a list, or is blank."""
        entry = self.entries.get(name)
        return entry.value if entry is not None and isinstance(entry.value, str) and not entry.null else None

    def texts(self, name: str) -> list[str]:
        """The texts of a setting's values, which may be a list or a single one; empty if it is not there."""
        value = self.entries[name].value if name in self.entries else []
        return [value] if isinstance(value, str) else list(value)

    def words(self, options: Collection[Option], given: Collection[str]) -> list[str]:
        """The file as words of a command line, without READ_FIRST.

        Args:
            given: names that are left out, since the command line has them.

        Raises:
            UsageError: a name is no option, or has a value that it cannot have.
        """
        by_name, but = {option.name: option for option in options}, {*READ_FIRST, *given}
        words: list[str] = []
        for name, entry in self.entries.items():
            if name in COMMAND_LINE_ALONE:
                raise UsageError(f"{self.place(name)}: it belongs on the command line; leave it out here")
            if name not in by_name:
                known = by_name.keys() - set(COMMAND_LINE_ALONE)
                raise UsageError(f"{self.place(name)}: there is no such setting{meant_by(name, known)}")
            words += [] if name in but else self._words(by_name[name], entry)
        return words

    def place(self, name: str) -> str:
        """The file, the line and the name of a setting."""
        return f"{self.path}, line {self.entries[name].line}: {name}"

    def located(self, error: UsageError, but: Collection[str]) -> UsageError:
        """The error with file and line if it refuses a setting of the file that is not in `but`; else as it is."""
        named = re.match(r"--(?:no-)?([a-z0-9-]+)", str(error))
        if named is None or named[1] not in self.entries or named[1] in but:
            return error
        return UsageError(f"{self.path}, line {self.entries[named[1]].line}: {error}")

    def _words(self, option: Option, entry: Entry) -> list[str]:
        kind = item_of(option.hint)
        if (kind is None) != isinstance(entry.value, str):
            wanted = "a list, such as [256, 256]" if kind else "a single value, not a list or a group"
            raise UsageError(f"{self.place(option.name)}: it takes {wanted}")
        if entry.null and type(None) not in get_args(option.hint):
            raise UsageError(f"{self.place(option.name)}: it has no value; write one, or leave the line out")
        try:
            if isinstance(entry.value, str):
                value = value_of(option.hint, entry.value)
                return [value] if option.positional else words_of(option, value)
            return words_of(option, tuple(value_of(kind, text) for text in entry.value))
        except ValueError as error:
            raise UsageError(f"{self.place(option.name)} {entry.value!s:.80}: {error}") from error


def read(path: str) -> ConfigFile:
    """Reads the settings in a file.

    Raises:
        UsageError: the file cannot be read, or is no mapping of names to values.
    """
    kind = Path(path).suffix.lower()
    if kind not in (".yaml", ".yml", ".toml"):
        raise UsageError(f"--config {path}: the name must end in .yaml, .yml or .toml, which says how to read it")
    try:
        data = read_regular(Path(path), LARGEST_BYTES)
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}; name a file of settings that can be read") from error
    with read_as(path, REMEDY):
        text = data.decode("utf-8-sig")
        pairs = _toml(path, text) if kind == ".toml" else _yaml(path, text)
        entries: dict[str, Entry] = {}
        for name, entry in pairs:
            name = name.replace("_", "-")
            if name in entries:
                raise UsageError(f"{path}, line {entry.line}: {name}: line {entries[name].line} has it already")
            entries[name] = entry
    return ConfigFile(path, entries)


def yaml_text(groups: Mapping[str, Mapping[str, Any]], heading: Sequence[str]) -> str:
    """YAML that `read` reads.

    Args:
        groups: heading of a group, which may be empty -> name -> value (text, number, boolean, None, or tuple).
        heading: lines of a comment at the top.
    """
    lines = [f"# {line}".rstrip() for line in heading]
    for group, values in groups.items():
        lines += ["", f"# {group}"] if group else []
        lines += [f"{name}: {_yaml_value(value)}" for name, value in values.items()]
    return "\n".join(lines) + "\n"


def _yaml_value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_yaml_value, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        number, exponent, power = repr(value).partition("e")
        return (
            f"{number}{'' if '.' in number or not exponent else '.0'}{exponent}{power}"  # 1e-08 is a text in YAML 1.1
        )
    if not isinstance(value, str):
        return str(value)
    return value if PLAIN.fullmatch(value) and value.lower() not in RESERVED else json.dumps(value)


def _yaml(path: str, text: str) -> Iterator[tuple[str, Entry]]:
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"{path}{line}: {error.problem}; it must be YAML: name: value in each line") from error
    except yaml.reader.ReaderError as error:
        raise UsageError(f"{path}: {error.reason}; it must be YAML in UTF-8") from error
    if root is None:
        return
    _check_tag(path, root)
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{path}, line {root.start_mark.line + 1}: it must be YAML: name: value in each line")
    for key, node in root.value:
        line = key.start_mark.line + 1
        _check_tag(path, key)
        if not isinstance(key, yaml.ScalarNode):
            raise UsageError(f"{path}, line {line}: it must be YAML: name: value in each line")
        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for item in [node, *items]:
            _check_tag(path, item, key.value)
        if any(not isinstance(item, yaml.ScalarNode) for item in items):
            raise UsageError(f"{path}, line {line}: {key.value}: it holds a group; write settings one below another")
        values = ["None" if item.tag == NULL else item.value for item in items]
        many = isinstance(node, yaml.SequenceNode)
        yield key.value, Entry(values if many else values[0], line, not many and node.tag == NULL)


def _check_tag(path: str, node: Any, name: str = "") -> None:
    if node.tag not in TAGS:
        tag = node.tag.replace("tag:yaml.org,2002:", "!!")
        where = f"{path}, line {node.start_mark.line + 1}{': ' if name else ''}{name}"
        raise UsageError(f"{where}: the tag {tag} asks for more than a text, a number, or a list; leave it out")


def _toml(path: str, text: str) -> Iterator[tuple[str, Entry]]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", str(error))
        line = f", line {place[2] or len(text.splitlines())}" if place else ""
        raise UsageError(f"{path}{line}: {place[1] if place else error}; it must be TOML: name = value") from error
    lines = text.splitlines()
    places = _places_of_names(lines)
    for name, value in content.items():
        number = _toml_line(lines, places.get(name, [0]), tomllib.loads)
        items = value if isinstance(value, list) else [value]
        if any(not isinstance(item, (str, int, float, bool)) for item in items):
            what = (
                "a group; write settings one below another"
                if isinstance(value, dict)
                else "a value that no setting has"
            )
            raise UsageError(f"{path}, line {number}: {name}: it holds {what}")
        texts = [item if isinstance(item, str) else str(item) for item in items]
        yield name, Entry(texts if isinstance(value, list) else texts[0], number)


def _places_of_names(lines: Sequence[str]) -> dict[str, list[int]]:
    """Name -> the places, from 0, of the lines that begin with it."""
    found: dict[str, list[int]] = {}
    for place, line in enumerate(lines):
        if match := TOML_NAME.match(line):
            found.setdefault(match[1], []).append(place)
    return found


def _toml_line(lines: Sequence[str], places: Sequence[int], loads: Any) -> int:
    """The number, from 1, of the first line that begins with a name and is no part of a value of several lines.

    It is no such part if the lines before it are valid TOML by themselves. That is looked at only where several lines
    begin with the name, since it takes long.

    Args:
        places: those of the lines that begin with the name, from 0.
    """
    for place in places if len(places) > 1 else ():
        try:
            loads("\n".join(lines[:place]))
        except ValueError:
            continue
        return place + 1
    return places[0] + 1
