"""What MkDocs does for the site beside its plugins: pages of settings and presets, equations and diagrams as SVG.

Settings come from the dataclasses of `ddrl.config` and `ddrl.algorithms`, so these pages cannot disagree with the code.
"""

from __future__ import annotations

import dataclasses
import functools
import html
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ziamath
from mkdocs.structure.files import File

from ddrl import algorithms
from ddrl.config import TrainConfig
from ddrl.docstrings import field_texts
from ddrl.options import other_libraries
from ddrl.types import Machine

HERE = Path(__file__).parent
MACHINE = Machine(cores=2, memory_bytes=16 * 10**9)  # presets that look at the machine are shown for this one
GENERATED = ("reference/settings.md", "reference/presets.md")
EQUATION = re.compile(r'<(div|span) class="arithmatex">\\[\[(](.*?)\\[\])]</\1>', re.DOTALL)
DIAGRAM = re.compile(r'<p><img alt="([^"]*)" src="[^"]*diagrams/([\w-]+)\.svg" ?/?></p>')


def on_files(files: Any, config: Any) -> Any:
    """Adds the generated pages."""
    for path, make in zip(GENERATED, (settings_page, presets_page)):
        files.append(File.generated(config, path, content=make()))
    return files


def on_page_content(content: str, **_: Any) -> str:
    """Writes equations and diagrams into the page: no script draws them, and they follow the theme."""
    return DIAGRAM.sub(_diagram, EQUATION.sub(_equation, content))


def _equation(match: re.Match[str]) -> str:
    kind, text = match[1], html.unescape(match[2]).strip()
    drawn = _drawn(text, kind == "span")
    label = html.escape(text, quote=True)
    name = "formula" if kind == "span" else "equation"
    return f'<{kind} class="{name}" role="img" aria-label="{label}">{drawn}</{kind}>'


@functools.cache
def _drawn(text: str, inline: bool) -> str:
    """TeX as SVG in the color of the text around it; inside a line it stands on the baseline."""
    size = 15.5 if inline else 19
    formula = ziamath.Latex(text, size=size, color="currentColor", inline=inline)
    svg = formula.svg()
    down = formula.getyofst()
    return svg.replace("<svg ", f'<svg style="vertical-align:{down:.2f}px" ', 1) if inline else svg


def _diagram(match: re.Match[str]) -> str:
    svg = (HERE / "diagrams" / f"{match[2]}.svg").read_text(encoding="utf-8")
    label = html.escape(html.unescape(match[1]), quote=True)
    return f'<div class="diagram" role="img" aria-label="{label}">{svg[svg.index("<svg") :]}</div>'


SETTINGS = """# Settings

Every option of `ddrl train`, generated from the code. A settings file and the Python interface use the same names
([settings files](../configuration.md)). The default is the one that holds where no preset says otherwise;
[presets](presets.md) shows what each preset changes.
"""
OTHER_LIBRARIES = """
## Names in other libraries

What Acme, CleanRL, RLlib, Sample Factory, Stable-Baselines3, and Tianshou call these options. Units and defaults may
differ.
"""
PRESETS = """# Presets

`default` has the settings of a paper in float32 (BA3C's is ours), `laptop` is made for two cores, and `smoke` takes
seconds. This page is generated from the code and lists the settings in which a preset departs from the
[defaults](settings.md); an empty cell keeps that default. Presets that look at the machine are shown for 2 cores and
16 GB, and those that look at the game for Breakout, on which `laptop` of BA3C and PPO has settings of its own.
[Differences from the papers](../differences.md) says what the numbers do not show.
"""


def settings_page() -> str:
    """Every setting of `ddrl train`, by group."""
    parts = [SETTINGS]
    for name, kind in typing.get_type_hints(TrainConfig).items():
        if name != "algorithm":
            parts += _group(name.capitalize(), kind)
    for algorithm in algorithms.ALGORITHMS.values():
        parts += _group("Algorithm: " + ", ".join(f"`{name}`" for name in algorithm.names), algorithm.settings)
    return "\n".join([*parts, *_names_elsewhere("\n".join(parts))])


def _group(title: str, kind: type) -> list[str]:
    rows = [f"\n## {title}\n", '<div class="settings" markdown>\n', "| option | default | meaning |", "|---|---|---|"]
    texts, hints = field_texts(kind), typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        if field.name == "plugins":  # --plugin, which names modules and is no setting
            continue
        choices = _choices(hints[field.name])
        meaning = texts[field.name] + (f" One of {choices}." if choices else "")
        rows.append(f"| `--{field.name.replace('_', '-')}` | {_shown(field.default)} | {_cell(meaning)} |")
    return [*rows, "\n</div>\n"]


def _names_elsewhere(page: str) -> Iterator[str]:
    """A table of what other libraries call the options that are on the page."""
    yield OTHER_LIBRARIES
    yield "| elsewhere | here |\n|---|---|"
    for ours in sorted(set(other_libraries.OPTIONS.values())):
        if f"| `--{ours}` |" in page:
            theirs = [f"`{name}`" for name, option in other_libraries.OPTIONS.items() if option == ours]
            yield f"| {', '.join(theirs)} | `--{ours}` |"


def _choices(hint: Any) -> str:
    literal = typing.get_origin(hint) is typing.Literal
    return ", ".join(f"`{choice}`" for choice in typing.get_args(hint)) if literal else ""


def presets_page() -> str:
    """Each name of `ddrl train` with the settings of its presets."""
    tables = [_preset_table(name, list(known.presets)) for name, known in algorithms.names().items()]
    return "\n".join([PRESETS, *(line for table in tables for line in table)])


def _preset_table(name: str, presets: list[str]) -> list[str]:
    columns = [dict(_changed(algorithms.preset(preset, None, MACHINE, name))) for preset in presets]
    rows = list(dict.fromkeys(setting for column in columns for setting in column))
    lines = [f"\n## `{name}`\n", f"| setting | {' | '.join(f'`{preset}`' for preset in presets)} |"]
    lines.append("|---" * (len(presets) + 1) + "|")
    lines += [f"| `{row}` | {' | '.join(column.get(row, '') for column in columns)} |" for row in rows]
    return [*lines, ""]


def _changed(config: TrainConfig) -> Iterator[tuple[str, str]]:
    for group in dataclasses.fields(config):
        settings = getattr(config, group.name)
        for field in dataclasses.fields(settings):
            value = getattr(settings, field.name)
            if value != field.default:
                yield field.name.replace("_", "-"), _shown(value)


def _shown(value: Any) -> str:
    if value is True or value is False:
        return "on" if value else "off"
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, str):
        return f"`{value}`" if value else "none"
    if isinstance(value, int):
        return f"{value:,}" if value < 10**10 else f"{value:.0e}"
    return f"{value:.6g}"


def _cell(text: str) -> str:
    """Text of a docstring inside a table: what Markdown would take for a mark stands as it is."""
    return re.sub(r"([|<>*_$])", r"\\\1", text)
