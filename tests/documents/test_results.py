"""What the pages of results show is what the data in the repository says."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from tests.documents.pages import ROOT

SPEC = importlib.util.spec_from_file_location("redraw", ROOT / "docs" / "redraw.py")
redraw = sys.modules.setdefault("redraw", importlib.util.module_from_spec(SPEC))
SPEC.loader.exec_module(redraw)
NAMES = sorted(path.name for path in redraw.DATA.iterdir())


def test_all_data_is_shown_and_all_that_is_shown_is_there():
    assert NAMES and list(redraw.shown()) and sorted(redraw.shown()) == NAMES
    sizes = {name: (redraw.FIGURES / f"{name}.png").stat().st_size for name in NAMES}
    assert [name for name, size in sizes.items() if not 10_000 < size <= redraw.MOST_BYTES] == []


def test_every_figure_is_drawn_from_data():
    drawn = {path.stem for path in redraw.FIGURES.glob("*.png")}
    assert drawn - {"board"} == set(NAMES), "all but the picture of the board's page"


@pytest.fixture
def undrawn(monkeypatch):
    """Figures that are saved as empty files: pixels take more than half of the time of a report."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, target, **options: None)


@pytest.mark.parametrize("name", NAMES)
def test_tables_equal_the_data(name, undrawn):
    assert redraw.shown()[name] == redraw.section(name, redraw.drawn(redraw.DATA / name)), "run `make results`"


def test_peers_of_several_machines_name_each_and_need_no_roofline(tmp_path, undrawn):
    one, other = (json.loads((redraw.DATA / "peers" / f"{name}.json").read_text()) for name in ("a2c16", "ppo"))
    other |= {"roofline": None, "roofline_share": None}
    other["machine"] |= {"processor": "Another", "packages": {"tensorflow": "3.0"}}
    for name, run in (("a", one), ("b", other)):
        (tmp_path / f"{name}.json").write_text(json.dumps(run))
    text = redraw.of_peers(tmp_path).text
    assert " on AMD EPYC, 2 cores and Another, 2 cores; rounds of " in text and "TensorFlow 2.21.0 and 3.0." in text
    (row,) = [line for line in text.splitlines() if line.startswith("| PPO")]
    assert row.split("|")[-2].strip() == "-"


@pytest.mark.parametrize("name", ["peers", "quorum-catch"])
def test_figures_are_drawn(name):
    figure = redraw.drawn(redraw.DATA / name).figure
    assert figure.startswith(b"\x89PNG") and len(figure) > 10_000


def test_large_figures_have_a_palette():
    def png(edge):
        pixels, data = np.random.default_rng(0).integers(0, 256, (edge, edge, 3), dtype=np.uint8), io.BytesIO()
        Image.fromarray(pixels).save(data, format="png")
        return data.getvalue()

    large, reduced = png(400), redraw.small(png(400))
    image = Image.open(io.BytesIO(reduced))
    assert (image.size, image.mode) == ((400, 400), "P")
    assert len(reduced) < redraw.MOST_BYTES < len(large)
    assert redraw.small(png(100)) == png(100)


def test_data_is_small_and_names_no_directory_of_a_machine():
    for name in NAMES:
        files = list((redraw.DATA / name).iterdir())
        assert max(file.stat().st_size for file in files) < 500_000
        bytes_of = {file.suffix: gzip.decompress if file.suffix == ".gz" else bytes for file in files}
        told = "".join(bytes_of[file.suffix](file.read_bytes()).decode() for file in files)
        assert not any(f'"{top}' in told or f" {top}" in told for top in ("/tmp", "/home", "/root", "/work"))
