"""The page in a real browser: whole at any width, in both colour schemes, without an error."""

import pytest
from support.browser import chromium, look, needs_chromium, served
from support.report_data import report_data

from bppsa_lightning import report

pytestmark = [needs_chromium, pytest.mark.slow]

FOUND = {
    "wide": "page.documentElement.scrollWidth - page.documentElement.clientWidth",
    "title": "page.title",
    "back": "view.getComputedStyle(page.body).backgroundColor",
    "text": "view.getComputedStyle(page.body).color",
    "line": "view.getComputedStyle(page.querySelector('.c0 .line')).stroke",
    "cards": "new Set([...page.querySelectorAll('.card')].map(c => c.offsetLeft)).size",
    "flat": "[...page.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().height < 60)"
    ".length",
    "letters": "Math.min(...[...page.querySelectorAll('svg text')].map("
    "t => t.getBoundingClientRect().height))",
    "outside": "[...page.querySelectorAll('svg text')].filter(t => { const a = "
    "t.getBoundingClientRect(), b = t.closest('svg').getBoundingClientRect(); return a.left < "
    "b.left - 1 || a.right > b.right + 1 || a.bottom > b.bottom + 2 }).length",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    (folder / "report.html").write_text(report.page(report_data()))
    return folder


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("width", "columns"), [(1200, 2), (390, 1)], ids=["desk", "phone"])
def test_the_page_is_whole(folder, tmp_path, width, columns, dark):
    found, console, asked = look(folder, "report.html", tmp_path, FOUND, width, dark)
    assert not console and asked[1:] in (["/report.html"], ["/report.html", "/favicon.ico"])
    assert found["wide"] == 0 and found["title"] == "Model: training report"
    assert found["cards"] == columns and not found["flat"] and not found["outside"]
    assert found["letters"] >= 10
    assert found["back"] == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")
    assert found["text"] == ("rgb(230, 233, 236)" if dark else "rgb(28, 32, 36)")
    assert found["line"] == ("rgb(86, 180, 233)" if dark else "rgb(0, 114, 178)")


def test_an_error_would_be_seen(tmp_path):
    (tmp_path / "broken.html").write_text("<script>nothing()</script>")
    with served(tmp_path) as (address, _):
        assert chromium(f"{address}/broken.html", tmp_path / "profile")[1]
