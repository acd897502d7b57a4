"""Reads options that dataclasses declare: a mistake is one line that says what was meant, and 1e6 is a whole number.

Tyro makes the parsers. It reports mistakes in frames of many lines, so words are checked before it sees them; and its
help keeps the line breaks of the source, so the pages are made here.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import shlex
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import tyro

from ddrl.docstrings import field_texts, paragraphs
from ddrl.errors import UsageError
from ddrl.option_values import item_of, shown, value_of, without_none
from ddrl.options.help_page import Entry, Section, page
from ddrl.options.other_libraries import OPTIONS, meant_by

Kind = TypeVar("Kind")
HELP = ("-h", "--help")
HELP_NAME = "help"
TYRO = "--tyro-"  # its options for the completion of shells
WORDS = {
    "config": "FILE", "dir": "DIR", "game": "GAME", "game-options": "KEY=VALUE...", "init-from": "RUN", "json": "FILE",
    "output": "PATH", "plugin": "MODULE", "resume": "RUN", "run-dir": "DIR", "sbatch-options": "WORDS",
    "starts": "FILE", "train-options": "WORDS", "video": "FILE",
}  # fmt: skip
"""Option whose value is a text -> what stands for that text in help, where NAME says too little."""
WITH_COMMAS = re.compile(r"[\w./+-]+(,[\w./+-]+)+")  # numbers or names; what has commas of its own has brackets, = or :
LONGEST_CHOICES = 28  # characters of a list of choices that stands beside an option
SHORT_TITLE = 40  # characters of a description that is the title of its group


class Option(NamedTuple):
    """One option, or a word without a name.

    Attributes:
        name: its name on the command line, without dashes in front.
        hint: the type of its value.
        group: the field of the nested dataclass that it belongs to (empty: it is not nested).
        field: its name in its dataclass.
        kind: the dataclass that has this field.
        positional: it is a word without a name.
        negative: if it is a boolean, there is also --no-NAME.
    """

    name: str
    hint: Any
    group: str
    field: str
    kind: type
    positional: bool = False
    negative: bool = True

    @property
    def text(self) -> str:
        """Its description in the source; empty without one."""
        return field_texts(self.kind).get(self.field, "")

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that it may have; empty if it is no choice."""
        is_choice = typing.get_origin(self.hint) is Literal
        return tuple(map(str, filter(None, typing.get_args(self.hint)))) if is_choice else ()

    @property
    def word(self) -> str:
        """The word that stands for its value in a line of help; empty if it takes no value."""
        if self.positional:
            return (self.field.removesuffix("s") if not self.field.endswith("ies") else f"{self.field[:-3]}y").upper()
        if self.name in WORDS and self.hint is not bool:
            return WORDS[self.name]
        hint = item_of(self.hint) or without_none(self.hint)
        if self.choices:
            listed = choices_word(self.choices)
            return listed if len(listed) <= LONGEST_CHOICES else "NAME"
        return {bool: "", int: "N", float: "X"}.get(hint, "NAME") + ("..." if item_of(self.hint) else "")

    def head(self, value: Any = None) -> str:
        """The option and the word for its value, as in a line of help. If `value` is True, the option is shown with
        [no-], since it can be turned off."""
        if self.positional:
            return self.word + ("..." if item_of(self.hint) else "")
        flag = f"--[no-]{self.name}" if value is True and self.negative else f"--{self.name}"
        return f"{flag} {self.word}".rstrip()

    def value(self, default: Any = None) -> Any:
        """Its value in the record `default` or, without one, its own default: MISSING if it must be given."""
        if default is not None:
            return getattr(getattr(default, self.group) if self.group else default, self.field)
        field = next(field for field in dataclasses.fields(self.kind) if field.name == self.field)
        return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def read(
    kind: type[Kind],
    argv: Sequence[str],
    prog: str,
    default: Kind | None = None,
    config: Sequence[Any] = (),
    hint: Callable[[str], str] = lambda name: "",
) -> Kind:
    """Reads the options of a command. A request for help ends the process.

    Args:
        kind: the dataclass that declares the options.
        default: a record with the values of options that are not given, and with the classes of nested groups.
        config: markers of tyro.
        hint: name that is no option -> what else the error says about it.

    Raises:
        UsageError: an option is unknown, or has a value that it cannot have.
    """
    return read_known(kind, argv, prog, default, config, hint=hint)[0]


def read_known(
    kind: type[Kind],
    argv: Sequence[str],
    prog: str,
    default: Kind | None = None,
    config: Sequence[Any] = (),
    description: str | None = None,
    others: bool = False,
    hint: Callable[[str], str] = lambda name: "",
) -> tuple[Kind, list[str]]:
    """As `read`; with `others`, it also returns the words that are no options of this command, and refuses none."""
    words = list(argv)
    if any(word in HELP for word in words):
        print(help_of(kind, prog, default, description, others), end="")
        raise SystemExit(0)
    if not any(word.startswith(TYRO) for word in words):
        words = list(_Words(words, list(options_of(kind, default)), prog, others, hint).checked(default is None))
    more: dict[str, Any] = {} if default is None else {"default": default}
    if others:
        return tyro.cli(
            kind, args=words, prog=prog, config=config, description=description, return_unknown_args=True, **more
        )
    return tyro.cli(kind, args=words, prog=prog, config=config, description=description, **more), []


def options_of(kind: type, default: Any = None, group: str = "") -> Iterator[Option]:
    """Yields the options of a dataclass and of those nested in it; no two have the same name."""
    hints = _hints(kind)
    for field in dataclasses.fields(kind):
        hint, markers = hints[field.name], list[Any]()
        if typing.get_origin(hint) is typing.Annotated:
            hint, *markers = typing.get_args(hint)
        value = getattr(default, field.name, None)
        nested = type(value) if dataclasses.is_dataclass(value) else hint
        if isinstance(nested, type) and dataclasses.is_dataclass(nested):
            yield from options_of(nested, value, field.name)
        elif tyro.conf.Suppress not in markers:
            named = next((marker.name for marker in markers if getattr(marker, "name", None)), field.name)
            positional = tyro.conf.Positional in markers
            if positional:  # its choices may be made only now: plugins add algorithms
                made = (marker.constructor_factory for marker in markers if hasattr(marker, "constructor_factory"))
                hint = next((make() for make in made if make is not None), hint)
            negative = tyro.conf.FlagCreatePairsOff not in markers
            yield Option(str(named).replace("_", "-"), hint, group, field.name, kind, positional, negative)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def names_of(options: Iterable[Option]) -> list[str]:
    """The names of options as they are typed, without those of positional words."""
    return [option.name for option in options if not option.positional]


def help_of(kind: type, prog: str, default: Any, description: str | None, others: bool) -> str:
    """The page of a command's --help.

    Args:
        kind: a dataclass; its docstring, or else `description`, stands above the options.
        default: as for `read`.
        others: the command takes the options of `ddrl train`, too.
    """
    options = list(options_of(kind, default))
    usage = " ".join([prog, *(option.head() for option in options if option.positional), "[OPTIONS]"])
    groups = dict.fromkeys(option.group for option in options)
    sections = [_section(group, [option for option in options if option.group == group], default) for group in groups]
    closing = ["It takes the options of `ddrl train`, too: `ddrl train --help` explains them."] if others else []
    return page(usage + (" [OPTIONS OF ddrl train]" if others else ""), paragraphs(description or kind.__doc__),
                sections, closing)  # fmt: skip


def _section(group: str, options: Sequence[Option], default: Any) -> Section:
    """The section of a group's options; a short description of the group is its title."""
    about = paragraphs(options[0].kind.__doc__) if group else []
    title = about.pop(0).rstrip(".") if about and len(about[0]) <= SHORT_TITLE else group or "options"
    entries = [_entry(option, option.value(default)) for option in options]
    return Section(title, entries if group else [*entries, Entry("-h, --help", "This text.")], " ".join(about))


def choices_word(choices: Sequence[str]) -> str:
    """Choices as they stand beside an option."""
    return f"{{{','.join(choices)}}}"


def told(head: str, text: str, choices: Sequence[str], value: str) -> Entry:
    """A line of help: what an option does, the choices where they are not beside it, and its value, if any."""
    missing = "{" not in head and not all(choice in text for choice in choices)
    one_of = f" One of {', '.join(choices)}." if missing else ""
    return Entry(head, f"{text}{one_of}{f' [{value}]' if value else ''}")


def _entry(option: Option, value: Any) -> Entry:
    hidden = value is dataclasses.MISSING or (option.hint is bool and not option.negative)
    return told(option.head(value), option.text, option.choices, "" if hidden else shown(value))


def name_of(word: str) -> str:
    """The option that a word such as --no-video or --batch_size=32 is about."""
    return word.split("=", maxsplit=1)[0].removeprefix("--").replace("_", "-")


def given(argv: Sequence[str], options: Collection[Option]) -> set[str]:
    """Names of the options in a command line."""
    names = {name_of(word) for word in argv if word.startswith("--")}
    return {option.name for option in options if names & {option.name, f"no-{option.name}"}}


def words_of(option: Option, value: Any) -> list[str]:
    """The words of a command line that give an option this value."""
    if isinstance(value, bool):
        return [f"--{'' if value else 'no-'}{option.name}"]
    if isinstance(value, tuple):
        return [f"--{option.name}", *map(_text, value)]
    return [f"--{option.name}={_text(value)}"]


def _text(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)


class _Words:
    """The words of a command line, which are checked one after the other.

    Args:
        prog: the command that has them.
        others: words that are no options of this command are left as they are, not refused.
        hint: name that is no option -> what else the error says about it.
    """

    def __init__(
        self, words: list[str], options: Sequence[Option], prog: str, others: bool, hint: Callable[[str], str]
    ) -> None:
        self._words, self._prog, self._others, self._hint, self._options = words, prog, others, hint, options
        self._by_name = {option.name: option for option in options if not option.positional}
        self._positional = [option for option in options if option.positional]  # those that take further words
        self._last: Option | None = None  # the option whose list of values goes on
        self._begun: Option | None = None  # the positional one whose list goes on

    def checked(self, must_be: bool) -> Iterator[str]:
        """Yields the words with whole numbers written out.

        Args:
            must_be: positional words without a default must be given.
        """
        while self._words:
            word = self._words.pop(0)
            yield self._option(word) if word.startswith("--") else self._value(word)
        for option in self._positional:
            if must_be and item_of(option.hint) is None and option.value() is dataclasses.MISSING:
                raise UsageError(f"{option.word} is missing ({self._prog} --help explains what to give)")

    def _value(self, word: str) -> str:
        """A word that is no option: one more value of the option before it, or a positional word."""
        option = self._last or (None if self._others else next(iter(self._positional), None))
        self._begun = option if option in self._positional else None
        if self._begun is not None and item_of(self._begun.hint) is None:
            self._positional.remove(self._begun)
        if option is None and not self._others:
            raise UsageError(f"{word:.80} belongs to no option ({self._prog} --help explains the options)", word)
        return _checked_value(option, word) if option else word

    def _option(self, word: str) -> str:
        """An option, with its value unless that is a list, whose words follow."""
        name, self._last = name_of(word), None
        if self._begun in self._positional:  # an option ends its list
            self._positional.remove(self._begun)
        switch = self._by_name.get(name, self._by_name.get(name.removeprefix("no-")))
        if switch is not None and switch.hint is bool and (switch.negative or name == switch.name):
            return _switched(switch, word)
        if name in self._by_name:
            return self._with_value(self._by_name[name], word)
        if self._others:
            return word
        meant = _alone(name, self._options, self._prog) or self._hint(name)
        meant = meant or meant_by(name, [*self._by_name, HELP_NAME], "--")
        raise UsageError(f"--{name}: there is no such option{meant} ({self._prog} --help explains the options)")

    def _with_value(self, option: Option, word: str) -> str:
        """An option with its value in one word; the words of a list follow it."""
        if "=" in word:
            return word.split("=", maxsplit=1)[0] + "=" + _checked_value(option, word.split("=", maxsplit=1)[1])
        if item_of(option.hint) is not None:
            self._last = option
            return word
        if not self._words or self._words[0].startswith("--"):
            name = name_of(word)
            seen = f", not {self._words[0]}; or write --{name}={shlex.quote(self._words[0])}" if self._words else ""
            raise UsageError(f"--{name}: it needs a value{seen}")
        # As one word, or a value that begins with a dash would be taken for an option.
        return f"{word}={_checked_value(option, self._words.pop(0))}"


def _switched(switch: Option, word: str) -> str:
    """A word that turns a boolean option on or off. Raises UsageError for a value, which would be read as a word."""
    if "=" in word:
        off = f" or --no-{switch.name}" if switch.negative else ""
        raise UsageError(f"{word:.80}: it takes no value; write --{switch.name}{off}")
    return word


def _alone(name: str, options: Sequence[Option], prog: str) -> str:
    """The end of a refusal of a positional word that was given with a name; empty if the name is not that of one."""
    words = [option.word for option in options if option.positional and option.name == OPTIONS.get(name, name)]
    return "".join(f"; it stands without a name, as in `{prog} {word}`" for word in words)


def _checked_value(option: Option, text: str) -> str:
    """The text of a value after a check of its type, with a whole number written out."""
    item = item_of(option.hint)
    if item is not None and not option.positional and WITH_COMMAS.fullmatch(text):
        separated = f"--{option.name} {text.replace(',', ' ')}"
        raise UsageError(f"--{option.name} {text:.80}: a comma does not separate values; write {separated:.80}")
    try:
        value = value_of(item or option.hint, text)
    except ValueError as error:
        if option.positional:
            raise UsageError(f"{text:.80}: {error}", text) from error
        raise UsageError(f"--{option.name} {text:.80}: {error}") from error
    return str(value) if type(value) is int else text
