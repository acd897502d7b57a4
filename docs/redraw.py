"""Draws the figures and writes the tables of docs/results again, from the data in docs/results/data: `make results`, or
`python docs/redraw.py NAME...` for some of its directories.

Each directory there holds what `ddrl study NAME --pack` wrote, or files of `ddrl bench peers --json`. A page shows it
between two lines, which this replaces:

    <!-- data: DIRECTORY -->
    <!-- end of data -->
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ddrl import rundir
from ddrl.commands.study import study_of
from ddrl.reporting.texts import number
from ddrl.studies import plan as plans
from ddrl.studies.collect import TABLE, collect
from ddrl.studies.data import unpack
from ddrl.studies.figures import COLORS
from ddrl.studies.tables import table

HERE = Path(__file__).parent
DATA, FIGURES = HERE / "results" / "data", HERE / "figures"
NAMES = {"stable-baselines3": "Stable-Baselines3", "sample-factory": "Sample Factory", "rllib": "RLlib"}
MOST_BYTES = 450_000
"""The most that a figure may have. At 200 dots per inch, one of 16 panels with translucent bands had 1.2 million."""
PALETTE = 128  # colors of a figure that would be larger
SECTION = re.compile(r"(<!-- data: ([\w-]+) -->\n).*?(<!-- end of data -->)", re.DOTALL)


class Drawn(NamedTuple):
    """What data says: a heading, its Markdown without the figure, and the figure."""

    heading: str
    text: str
    figure: bytes


def drawn(data: Path) -> Drawn:
    """The report of a packed study, or of what was measured beside peers."""
    return of_study(data) if (data / plans.PLAN).exists() else of_peers(data)


def of_study(data: Path) -> Drawn:
    """As `ddrl study NAME --from-data` reports it."""
    study = study_of(rundir.read_json(data / plans.PLAN)["study"])
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "study"
        unpack(data, path)
        plan = plans.load(path, study.name)
        assert plan is not None
        with contextlib.redirect_stdout(io.StringIO()):
            collect(plan, study)
        heading, text = (path / TABLE).read_text().split("\n", 1)
        return Drawn(heading.removeprefix("# "), text.strip(), (path / "figure.png").read_bytes())


def of_peers(data: Path) -> Drawn:
    """Both sides of `ddrl bench peers` in a row each, and their ratios by round."""
    measured = [json.loads(path.read_text()) for path in sorted(data.glob("*.json"))]
    machines = [run["machine"] for run in measured]
    rows = table("Agent steps/s of training, median of the rounds and their range", measured, {
        "ours": _ours,
        "agent steps/s": lambda run: _rounds(run["ours_by_round"]),
        "peer": _peer, "its agent steps/s": lambda run: _rounds(run["peer_by_round"]),
        "ratio": lambda run: f"**{run['ratio']:.2f}**",
        "share of our roofline": _share,
    })  # fmt: skip
    seconds = sorted({f"{run['seconds']:g}" for run in measured}, key=float)
    where = dict.fromkeys(f"{machine['processor']}, {machine['cores']} cores" for machine in machines)
    versions = dict.fromkeys(machine["packages"]["tensorflow"] for machine in machines)
    told = (
        f"Both sides alternately on {' and '.join(where)}; rounds of {', '.join(seconds)} s; "
        f"TensorFlow {' and '.join(versions)}."
    )
    options = "\n".join(f"- {_ours(run)}: `{_settings(run['settings_of_ours'])}`" for run in measured)
    text = f"{told}\n\n{rows.markdown().strip()}\n\nThe settings of ours, where they are not the defaults:\n\n{options}"
    return Drawn("Speed beside other libraries", text, _ratios(measured))


def _ours(run: Mapping[str, Any]) -> str:
    return f"{run['algorithm'].upper()}, {_simulators(run)}"


def _settings(words: str) -> str:
    """Options of ours without those that all have; of one that is given twice the last counts."""
    algorithm, *options = words.split(" --")
    known = {name: name + space + value for name, space, value in (option.partition(" ") for option in options)}
    common = ("game", "network", "compute-dtype", "no-evaluator")
    return " --".join([algorithm, *(text for name, text in known.items() if name not in common)])


def _rounds(rates: Sequence[float]) -> str:
    return f"{number(statistics.median(rates))} ({number(min(rates))} to {number(max(rates))})"


def _share(run: Mapping[str, Any]) -> str | None:
    """None where the roofline was not measured."""
    share = run["roofline_share"]
    return None if share is None else f"{share:.2f} of {number(run['roofline'])}"


def _peer(run: Mapping[str, Any]) -> str:
    peer = run["about_peer"]
    environments = peer["environments"]
    return f"{NAMES[peer['name']]} {peer['version']}, {environments} environment{'s' * (environments > 1)}"


def _simulators(run: Mapping[str, Any]) -> str:
    number = re.search(r"--simulators (\d+)", _settings(run["settings_of_ours"]))
    return f"{number[1]} simulators" if number else "default simulators"


def _ratios(measured: Sequence[Mapping[str, Any]]) -> bytes:
    """A row for each comparison: its ratio, and that of each round."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 0.8 + 0.55 * len(measured)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    names = [f"{_ours(run)}\nbeside {_peer(run)}" for run in measured]
    for row, run in enumerate(measured):
        rounds = [ours / peer for ours, peer in zip(run["ours_by_round"], run["peer_by_round"])]
        axes.plot([0, run["ratio"]], [row, row], color=COLORS[0], linewidth=7, solid_capstyle="butt", alpha=0.35)
        axes.plot(rounds, [row] * len(rounds), "o", color=COLORS[0], markersize=4)
        axes.annotate(f"{run['ratio']:.2f}", (max(rounds), row), (6, -3), textcoords="offset points", fontsize=9)
    axes.axvline(1.0, color="#777777", linewidth=1.0, linestyle=(0, (5, 3)))
    axes.set(xlabel="ratio of agent steps/s: of the medians, and of each round", xlim=(0, 1.12 * axes.get_xlim()[1]))
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    image = io.BytesIO()
    figure.savefig(image, dpi=200, format="png")
    return image.getvalue()


def small(png: bytes) -> bytes:
    """A figure as pages have it: with a palette if it has more than MOST_BYTES, or else as it is."""
    from PIL import Image

    if len(png) <= MOST_BYTES:
        return png
    image, data = Image.open(io.BytesIO(png)).convert("RGB"), io.BytesIO()
    image.quantize(PALETTE, dither=Image.Dither.NONE).save(data, format="png", optimize=True)
    return data.getvalue()


def section(name: str, report: Drawn) -> str:
    """What a page says of it."""
    return f"![{report.heading}](../figures/{name}.png)\n\n{report.text}\n"


def pages() -> list[Path]:
    """Those that may show data."""
    return sorted((HERE / "results").glob("*.md"))


def shown() -> dict[str, str]:
    """Name of data -> what a page says of it now."""
    return {
        match[2]: match[0].removeprefix(match[1]).removesuffix(match[3])
        for page in pages()
        for match in SECTION.finditer(page.read_text(encoding="utf-8"))
    }


def main() -> int:
    """Writes figures and sections; the status is 1 where data is shown nowhere, or a page shows what is not there."""
    data = {path.name: path for path in sorted(DATA.iterdir()) if path.is_dir()}
    reports = {name: drawn(path) for name, path in data.items() if name in (sys.argv[1:] or data)}
    for name, report in reports.items():
        (FIGURES / f"{name}.png").write_bytes(small(report.figure))
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new = SECTION.sub(lambda m: f"{m[1]}{section(m[2], reports[m[2]])}{m[3]}" if m[2] in reports else m[0], text)
        if new != text:
            page.write_text(new, encoding="utf-8")
            print(f"written: {page.relative_to(HERE.parent)}")
    wrong = sorted((data.keys() ^ shown().keys()) | set(sys.argv[1:]) - data.keys())
    for name in wrong:
        print(f"{name}: {'shown on no page' if name in data else 'no such data'}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
