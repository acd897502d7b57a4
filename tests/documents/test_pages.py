"""README and docs/: length, links, figures, the site."""

from __future__ import annotations

import configparser
import importlib.util
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
import yaml

from ddrl.slurm import site
from tests.documents import pages
from tests.documents.pages import PAGES, ROOT

GENERATED = ("reference/settings.md", "reference/presets.md")  # by docs/hooks.py
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
BESIDE = [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]  # the README; no pages of the site


def test_the_readme_is_short_and_has_a_figure_and_a_recording():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert "docs/figures/games.png" in text
    recordings = re.findall(r"\]\((docs/\S+\.gif)\)", text)
    assert recordings
    assert all((ROOT / path).stat().st_size <= 2_000_000 for path in recordings)


@pytest.mark.parametrize("page", [*PAGES, *BESIDE], ids=[*NAMES, *(page.name for page in BESIDE)])
def test_links_lead_somewhere(page):
    for link in pages.links(page):
        path, _, anchor = link.partition("#")
        if path.endswith(GENERATED):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in pages.anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_files_and_names_of_the_code_exist(page):
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"`((?:ddrl|cluster|tests|slurm|examples|docs)/[\w./-]+)`", text):
        assert path == "slurm/site.conf" or any((place / path).exists() for place in (ROOT, ROOT / "tests")), path
    for names, path in re.findall(r"((?:`\w+`(?:, | and )?)+) in `(ddrl/[\w/]+\.py)`", text):
        source = (ROOT / path).read_text(encoding="utf-8")
        assert all(name in source for name in re.findall(r"\w+", names) if name != "and"), (names, path)


def test_the_page_on_design_names_every_module_of_the_package():
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    modules = [path.stem for path in (ROOT / "ddrl").glob("*.py")]
    assert [name for name in modules if f"{name}.py" not in text and f"`{name}`" not in text] == []


def test_every_figure_and_diagram_is_on_a_page():
    shown = {(page.parent / link).resolve() for page in PAGES for link in pages.links(page)}
    drawn = [path for folder in ("figures", "diagrams") for path in (ROOT / "docs" / folder).iterdir()]
    assert [path.name for path in drawn if path not in shown] == []


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [page for page in PAGES[1:] if f" {page.relative_to(ROOT / 'docs')}\n" not in text]
    assert missing == []


def test_every_failure_has_a_row_that_names_its_test():
    """The page of tests has the rows of the page on failures, in the same order."""
    said, tested = (_rows((ROOT / "docs" / name).read_text()) for name in ("failures.md", "failure-tests.md"))
    assert list(tested) == ["Processes", "Machines and jobs", "Numbers and files", "The user"]
    for title, rows in tested.items():
        assert rows and all("`" in row[-1] for row in rows), title
        assert [row[:-1] for row in rows] == [row[: len(rows[0]) - 1] for row in said[title]], title


def test_tests_that_pages_name_exist():
    """`FILE::TEST` is a function of that file."""
    named = {name for page in PAGES for name in re.findall(r"`(tests/[\w./]+::\w+)`", page.read_text(encoding="utf-8"))}
    assert named
    for file, _, test in (name.partition("::") for name in sorted(named)):
        assert f"\ndef {test}(" in (ROOT / file).read_text(encoding="utf-8"), (file, test)


def _rows(text: str) -> dict[str, list[list[str]]]:
    """Heading -> cells of the rows of all tables below it."""
    bare = re.sub(r"^\| .*\n\|---.*\n", "", text, flags=re.MULTILINE)
    parts = [part.partition("\n") for part in bare.split("\n## ")[1:]]
    return {
        title: [line[2:-2].split(" | ") for line in below.splitlines() if line.startswith("| ")]
        for title, _, below in parts
    }


@pytest.mark.parametrize("path", sorted((ROOT / "docs/diagrams").glob("*.svg")), ids=lambda path: path.name)
def test_diagrams_stay_in_their_box_and_follow_the_theme(path):
    text = path.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    width, height = map(float, root.get("viewBox").split()[2:])
    assert "prefers-color-scheme: dark" in text
    for label in root.iter("{http://www.w3.org/2000/svg}text"):
        size, x, y = (float(label.get(name)) for name in ("font-size", "x", "y"))
        long = 0.56 * size * len(label.text or "")  # about, of a sans-serif font
        left = x - {"start": 0, "middle": long / 2, "end": long}[label.get("text-anchor")]
        assert left >= -2 and left + long <= width + 2, label.text
        assert size <= y <= height, label.text


def test_python_blocks_are_python():
    for page in PAGES:
        for number, code in enumerate(pages.blocks(page, "python")):
            compile(code, f"{page.name}, block {number}", "exec")


def test_the_site_file_of_the_page_on_slurm_is_one(tmp_path):
    (text,) = pages.blocks(ROOT / "docs/get-started/slurm.md", "bash")
    (path := tmp_path / "site.conf").write_text(text)
    read = site.read(path)
    assert str(read.runs) == "/work/physics42/runs"
    assert read.variables["SBATCH_ACCOUNT"] == "physics42" and len(read.variables) == 3
    known = site.EXAMPLE.read_text()
    names = re.findall(r"^(?:export )?(\w+)(?==|\(\) \{)", text, re.MULTILINE)
    assert len(names) == 8 and all(name in known or name.startswith("SBATCH_") for name in names)


def test_extras_that_pages_name_exist():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = set(setup["options.extras_require"])
    named = {
        name for page in PAGES for name in re.findall(r"(?:\.|ddrl)\[(\w+)\]['\"]", page.read_text(encoding="utf-8"))
    }
    assert named <= extras


def test_the_citation_is_of_this_version_and_of_papers_that_a_page_names():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert all(citation[name] for name in ("message", "title", "authors"))
    assert (citation["version"], citation["license"]) == (setup["metadata"]["version"], setup["metadata"]["license"])
    named = (ROOT / "docs/papers.md").read_text(encoding="utf-8")
    assert len(citation["references"]) == 5
    for paper in citation["references"]:
        assert f"*{paper['title']}*" in named
        assert f"{paper['year']}\n" in named.partition(f"*{paper['title']}*")[0][-40:]


def test_settings_of_the_site_are_those_of_the_command_line():
    pytest.importorskip("ziamath")
    hooks = _hooks()
    page, from_presets = hooks.settings_page(), hooks.presets_page()
    for name in ("--learning-rate", "--epsilon-ladder", "--slope-clip", "--exchange", "--eval-games"):
        assert f"| `{name}` |" in page, name
    assert "workers average among themselves" in page, "the text of an option that is made up of parts"
    assert "| `learning-rate` | 0.00025 | 0.00025 |" in from_presets
    assert "| `clip-coef`, `clip-param`, `ppo-clip-ratio` | `--clip-range` |" in page.partition("## Names in other")[2]
    assert all(line.count(" | ") >= 2 for line in page.splitlines() if line.startswith("| `--"))
    assert not re.search(r"\|\s*\|$", page, re.MULTILINE), "a setting without a text"


def test_equations_become_pictures():
    pytest.importorskip("ziamath")
    content = '<span class="arithmatex">\\(\\theta_j &lt; 1\\)</span><div class="arithmatex">\\[\nx^2\n\\]</div>'
    shown = _hooks().on_page_content(content)
    assert shown.count("<svg") == 2
    assert 'class="formula" role="img" aria-label="\\theta_j &lt; 1"' in shown
    assert "arithmatex" not in shown


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_site_is_built_strictly_and_asks_no_network(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("ziamath")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stdout + done.stderr
    written = list((tmp_path / "site").rglob("*.html"))
    assert len(written) > len(PAGES)
    loads = re.compile(
        r'(?:src|href)="(https?://[^"]*)"[^>]*(?:stylesheet|script|preconnect)|<script[^>]+src="(https?:[^"]*)'
    )
    for page in written:
        text = page.read_text(encoding="utf-8")
        assert not loads.search(text), page
        assert 'class="arithmatex"' not in text, page
    assert 'id="ddrl.api.training.train"' in (tmp_path / "site/reference/api.html").read_text(encoding="utf-8")


def _hooks():
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs/hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
