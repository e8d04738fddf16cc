"""The page of a report: of its data, without errors, whatever the data are."""

import json
import re
from xml.etree import ElementTree

import pytest
from support.report_data import report_data

from bppsa_lightning import report
from bppsa_lightning.report import charts, words
from bppsa_lightning.report.charts import Series


def svgs(html):
    """The pictures of a page, parsed."""
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def write(folder, data):
    path = folder / "bppsa_report.json"
    path.write_text(json.dumps(data))
    return path


def test_a_page_is_made_of_the_data(tmp_path):
    data = report_data()
    made = report.render(write(tmp_path, data), tmp_path / "page.html")
    html = made.read_text()
    for said in ("Model: training report", "3.0x", "encoder", "fastest on 2 cores", "torch 2"):
        assert said in html
    assert len(svgs(html)) == 6 and sorted(p.name for p in tmp_path.iterdir()) == [
        "bppsa_report.json", "page.html",
    ]  # fmt: skip
    made.write_text("old")
    report.render(tmp_path / "bppsa_report.json", made)
    assert made.read_text() == html


def test_a_page_loads_nothing():
    html = report.page(report_data())
    assert not re.findall(r'(?:src|href)="(?!data:)|url\(|@import|<script', html)


def test_names_of_the_users_are_text(tmp_path):
    data = report_data()
    evil = '<script>alert(1)</script>"&'
    data["run"]["model"] = data["run"]["ended"] = evil
    data["chains"][0]["layer"] = data["patterns"][0]["layer"] = evil
    data["time"]["layers"][0]["layer"] = data["environment"]["CPU"] = evil
    data["metrics"] = {evil: data["metrics"]["val_loss"]}
    html = report.page(data)
    assert "<script>" not in html and "&lt;script&gt;" in html
    assert svgs(html)


def test_a_training_of_no_step_has_a_page():
    data = report_data()
    data["run"] |= {"steps": 0, "ended": "ValueError: no data"}
    data |= {"chains": [], "pruned": [], "not_accelerated": [], "patterns": [], "explanation": ""}
    data["loss"] = {"steps": [], "values": []}
    data["metrics"] = {}
    data["time"] = {"ours": {}, "stock": {}, "speed_ups": {}, "layers": [], "note": ""}
    data["memory"] = {"parameter_bytes": 0, "steps": [], "values": []}
    html = report.page(data)
    assert "Broke off: ValueError: no data" in html and not svgs(html)


def test_values_that_are_not_finite_are_counted_and_leave_a_gap():
    data = report_data()
    data["loss"] = {"steps": [1, 2, 3, 4], "values": [1.0, 2.0, None, 0.5]}
    assert "1 values of the loss were not finite" in report.page(data)
    drawn = charts.lines("x", [Series("x", [1, 2, 3, 4, 5], [1.0, 2.0, None, 0.5, 0.1])])
    (path,) = re.findall(r'class="line" d="([^"]+)"', drawn)
    assert path.count("M") == 2 and path.count("L") == 2
    assert "no finite values" in charts.lines("x", [Series("x", [1], [None])])


@pytest.mark.parametrize("values", [[1.0], [0.0, 0.0], [-3.0, 5e9], [1e-12, 1e-11], [1e-300, 1.0]])
def test_any_values_have_a_chart(values):
    drawn = charts.lines("x", [Series("x", range(len(values)), values)])
    ElementTree.fromstring(drawn)
    numbers = re.findall(r'c[xy]="([^"]+)"', drawn)
    assert numbers and all(0 <= float(n) <= charts.WIDTH for n in numbers)
    assert 2 <= drawn.count('class="grid"') <= 8


def test_a_loss_that_falls_by_orders_has_a_logarithmic_axis():
    drawn = charts.lines("x", [Series("x", [0, 1, 2], [100.0, 1.0, 0.01])])
    heights = [float(y) for y in re.findall(r'cy="([^"]+)"', drawn)]
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1])


def test_bars_are_as_long_as_their_numbers():
    rows = [("stock", [3.0, 1.0]), ("ours", [1.0, 1.0])]
    drawn = charts.stacked("x", rows, ["a", "b"], words.seconds)
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height="22"', drawn)]
    assert widths == pytest.approx([charts.WIDTH * n / 4 for n in (3, 1, 1, 1)])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "found no JSON"),
        ("[]", "found the format 'list', wanted 'bppsa_report/1'"),
        ('{"format": "bppsa_report/9"}', "found the format 'bppsa_report/9'"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path, content, said):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"x.json: {said}"):
        report.render(path, tmp_path / "x.html")
    with pytest.raises(FileNotFoundError):
        report.render(tmp_path / "gone.json", tmp_path / "x.html")
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_words():
    assert [words.seconds(s) for s in (2e-6, 0.0123, 3.0, 62, 3660)] == [
        "2 µs", "12.3 ms", "3 s", "1 min 2 s", "1 h 1 min",
    ]  # fmt: skip
    assert [words.size(b) for b in (12, 3400, 5.6e7, 7e12)] == ["12 B", "3.4 kB", "56 MB", "7 TB"]
    shorter = [words.seconds(s) for s in (9.996e-4, 9.994e-4, 0.9997, 59.97)]
    assert shorter == ["1 ms", "999 µs", "1 s", "1 min 0 s"]
    assert [words.size(b) for b in (999.8, 999.8e6, 999.8e9)] == ["1 kB", "1 GB", "1 TB"]
    assert [words.factor(x) for x in (0.5, 1.96, 31.4)] == ["0.50x", "2.0x", "31x"]
