"""Pictures of the records: all drawn by one command, as committed, and legible."""

import json
import re
import shutil
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib", reason="needs matplotlib, of the extra experiments")

from experiments import recording, redraw
from experiments.benchmarks import grid_plot, recurrent_plots
from experiments.compare import summary
from experiments.paper import figure10

RECORDS = Path(__file__).parents[2] / "experiments" / "records"
VECTORS = sorted(path.relative_to(RECORDS).with_suffix("").as_posix()
                 for path in RECORDS.rglob("*.svg"))  # fmt: skip


def record(name):
    return json.loads((RECORDS / f"{name}.json").read_text())


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved meanwhile, laid out, with their captions."""
    figures, caption = [], recording.style.caption

    def keep(figure, text):
        caption(figure, text)
        figures.append(figure)

    monkeypatch.setattr(recording.style, "caption", keep)
    return figures


def test_every_picture_is_drawn_by_the_command():
    pictures = {p.relative_to(RECORDS).with_suffix("").as_posix() for p in RECORDS.rglob("*.png")}
    scans = {name for name in pictures if name.startswith("scan_")}
    printed = {"command_line"}  # what `bppsa bench --picture` writes, as it does for its users
    assert pictures - scans - printed == {*redraw.ALL} - {"scan"}
    assert len(scans) == 4 and set(VECTORS) <= pictures


@pytest.mark.parametrize("name", [name for name in redraw.OF_RECORDS if name in VECTORS])
def test_a_picture_is_what_its_record_says(name, tmp_path):
    """As .svg, which is text; a .png differs with the libraries that compress it."""
    assert redraw.redraw(name, tmp_path)
    committed, again = ((f / f"{name}.svg").read_text() for f in (RECORDS, tmp_path))
    version = "Matplotlib v"
    if committed.partition(version)[2][:6] != again.partition(version)[2][:6]:
        pytest.skip("drawn by another version of matplotlib")
    assert committed == again, f"stale: run `python -m experiments.redraw {name}`"


@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_is_small_and_complete(name):
    path = RECORDS / f"{name}.svg"
    assert path.stat().st_size < 320_000
    assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_an_unknown_picture_is_refused(capsys):
    with pytest.raises(SystemExit):
        redraw.main(["figure11"])
    assert "names: found figure11, wanted some of" in capsys.readouterr().err


def boxes(artists):
    return [artist.get_window_extent() for artist in artists]


TEXT = re.compile(r"<!-- (.*?) -->\s*<g [^>]*?transform=\"translate\([\d.]+ ([\d.]+)\)", re.DOTALL)


@pytest.mark.parametrize("name", [name for name in redraw.OF_RECORDS if name in VECTORS])
def test_the_caption_names_the_machine_below_everything_else(name):
    """As it is written: the whole of it is laid out anew then."""
    heights = {text: float(y) for text, y in TEXT.findall((RECORDS / f"{name}.svg").read_text())}
    said = recording.machine(record(name)["environment"])
    (caption,) = [t for t in heights if said in t or t.startswith("computed")]
    others = [y for text, y in heights.items() if text != caption]
    assert len(others) > 10 and heights[caption] >= max(others) + 8  # its own height, in points


def test_the_grid_says_every_speed_up_that_can_be_read():
    rows = record("grid_recurrent_cpu")["rows"]
    figure = grid_plot.draw(rows)
    texts = [text.get_text() for axis in figure.axes for text in axis.texts]
    assert len(texts) == sum(row["scanned"] for row in rows)
    assert max(float(text) for text in texts) == pytest.approx(425, abs=1)
    squares = [patch for axis in figure.axes for patch in axis.patches]
    assert len(squares) >= len(rows)
    figure.draw_without_rendering()
    for axis in figure.axes:
        apart(boxes(axis.texts))


def test_the_grid_marks_what_is_slower_and_refuses_a_size_twice():
    rows = record("grid_recurrent_cpu")["rows"][:60]
    scanned = next(row for row in rows if row["scanned"])
    scanned["ratio_stock"]["both"] = 0.8
    texts = [text for axis in grid_plot.draw(rows).axes for text in axis.texts]
    red = [t.get_text() for t in texts if t.get_color() == grid_plot.SLOWER]
    assert red == ["0.80"]
    with pytest.raises(ValueError, match="rows: found 61 of 60 sizes"):
        grid_plot.draw([*rows, rows[0]])


def apart(found):
    """No two boxes cover each other."""
    for one, other in combinations(found, 2):
        assert not (one.x0 < other.x1 and other.x0 < one.x1
                    and one.y0 < other.y1 and other.y0 < one.y1), (one, other)  # fmt: skip


def test_bars_and_their_numbers_lie_beside_each_other(drawn, tmp_path):
    found = record("benchmark_recurrent_cpu")
    recurrent_plots.draw(found, tmp_path / "bars.png")
    (figure,) = drawn
    (axis,) = figure.axes
    assert len(axis.patches) == len(axis.texts) == len(found["rows"])
    apart(boxes(axis.patches))
    apart(boxes(axis.texts))


def test_marks_of_the_cells_lie_beside_each_other(drawn, tmp_path):
    recurrent_plots.draw(record("h200_recurrent"), tmp_path / "sweeps.png")
    (figure,) = drawn
    for panel in figure.axes:
        lines = [line for line in panel.lines if line.get_marker() not in ("None", None)]
        places = [place for line in lines for place in line.get_xdata()]
        assert len(lines) == 3 and len(set(places)) == len(places)
        assert len({line.get_marker() for line in lines}) == 3


def test_names_in_figure_10_are_whole_and_apart(drawn, tmp_path):
    found = record("figure10")
    figure10.draw(found, tmp_path / "figure10.png")
    (figure,) = drawn
    (axis,) = figure.axes
    names = ", ".join(text.get_text() for text in axis.texts).split(", ")
    assert sorted(names) == sorted(s["name"] for s in found["scan"] if s["critical"])
    apart(boxes(axis.texts))
    (area,) = boxes([axis.patch])
    rings = [
        axis.transData.transform((s["mnk"], s["flops"])) for s in found["scan"] if s["critical"]
    ]
    for box in boxes(axis.texts):
        assert area.x0 <= box.x0 and box.x1 <= area.x1
        assert not any(box.padded(4).contains(*ring) for ring in rings)


def log(scale):
    steps = range(0, 6000, 2)
    return {
        "train/loss": [(step, scale / (step + 1)) for step in steps],
        "seconds/elapsed": [(step, scale * step) for step in steps],
    }


def test_curves_are_kept_thin_and_drawn_again(tmp_path, monkeypatch):
    curves = summary.curves({"bppsa": log(1.0), "stock": log(2.0)})
    assert {len(series) for curve in curves.values() for series in curve.values()} == {500}
    assert curves["stock"]["step"][1] == 12 and curves["stock"]["seconds"][1] == 24
    monkeypatch.setattr(recording, "RECORDS", tmp_path)
    shutil.copy(RECORDS / "lenet5.json", tmp_path)
    assert not redraw.redraw("lenet5", tmp_path)
    recording.write(tmp_path / "lenet5_curves.json", {"curves": curves})
    assert redraw.redraw("lenet5", tmp_path)
    assert (tmp_path / "lenet5.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "lenet5.svg").is_file()
