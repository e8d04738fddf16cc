"""The documentation site: built offline and strictly, linked, complete."""

import inspect
import re
import shutil
from html.parser import HTMLParser
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from support import site

import bppsa_lightning as bl
from bppsa_lightning import datasets

pytest.importorskip("mkdocs", reason="needs mkdocs, of the extra docs")
HERE = "http://site/"  # the address that links are resolved from


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return site.built(tmp_path_factory)


class Page(HTMLParser):
    """The links, sources and ids of a page, and the text of its article outside code."""

    def __init__(self, html):
        super().__init__()
        self.links, self.sources, self.ids, self.text = [], [], set(), []
        self._inside = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in ("img", "script", "link", "source", "iframe"):
            self.sources += [given[name] for name in ("src", "href") if given.get(name)]
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag in ("article", "code", "pre", "script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag):
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data):
        if self._inside == ["article"]:
            self.text.append(data)


@pytest.fixture(scope="module")
def parsed(folder):
    return {name: Page((folder / name / "index.html").read_text()) for name in site.pages(folder)}


def file_of(folder, address):
    """The file that an address of the site is read from."""
    path = folder / unquote(urlsplit(address).path).lstrip("/")
    return path / "index.html" if address.split("#")[0].endswith("/") else path


def test_every_link_and_anchor_leads_somewhere(folder, parsed):
    links = 0
    for name, page in parsed.items():
        for link in page.links + page.sources:
            address = urljoin(HERE + name, link)
            if not address.startswith(HERE):
                continue
            links += 1
            assert file_of(folder, address).is_file(), f"{name}: {link}"
            anchor = unquote(urlsplit(address).fragment)
            target = urlsplit(address).path.lstrip("/")
            if anchor and target in parsed and anchor != "__skip":
                assert anchor in parsed[target].ids, f"{name}: {link}"
    assert links > 500


def test_nothing_comes_from_another_host(folder, parsed):
    for name, page in parsed.items():
        for source in page.sources:
            assert urljoin(HERE + name, source).startswith(HERE), f"{name}: {source}"
    for style in folder.rglob("*.css"):
        fetched = re.findall(r"url\(\s*[\"']?(https?:)?//", style.read_text())
        assert not fetched, style


def test_every_page_of_the_repository_is_on_it(parsed):
    for page in (site.ROOT / "docs").glob("*.md"):
        assert f"docs/{page.stem}/" in parsed
    assert {"", "CONTRIBUTING/", "CHANGELOG/", "experiments/records/"} <= set(parsed)


def test_every_public_name_is_documented(parsed):
    ids = {name: page.ids for name, page in parsed.items() if name.startswith("api/")}
    every = set().union(*ids.values())
    modules = {"fabric", "jacobians", "nn", "ops", "reference"}
    for name in set(bl.__all__) - modules:
        named = getattr(bl, name)
        # Of attach.attach: the function, not its module.
        place = f"{named.__module__}.{name}" if inspect.isfunction(named) else f".{name}"
        assert any(id.endswith(place) for id in every), name
        assert named.__doc__, name
    for module, page in ((bl.ops, "ops"), (bl.jacobians, "jacobians"), (bl.nn, "nn")):
        last = {id.rpartition(".")[2] for id in ids[f"api/{page}/"]}
        functions = {name for name in module.__all__ if callable(getattr(module, name))}
        assert functions - last == set()
    for name in datasets.__all__:
        assert f"datasets.{name}" in ids["api/datasets/"], name


def test_no_markdown_is_left_over(parsed):
    """What GitHub takes for a table, a list, a link or emphasis is one here, too."""
    for name, page in parsed.items():
        text = "".join(page.text)
        for left in (
            r"^\s*\|.*\|\s*$",
            r"^[-*] \w",
            r"^\d+\. \w",
            r"\]\(",
            r"\*\*[A-Za-z]",
            "<!--",
            "```",
        ):
            found = re.search(left, text, re.M)
            assert not found, f"{name}: {text[max(found.start() - 80, 0) : found.end() + 80]!r}"


def test_a_number_and_its_unit_stay_together(parsed):
    text = "".join(parsed[""].text)
    assert "5.41\N{NO-BREAK SPACE}ms" in text and "3\N{NO-BREAK SPACE}%" in text


def test_a_broken_link_fails_the_build(tmp_path):
    pages = shutil.copytree(site.CONFIG.parent / "pages", tmp_path / "pages")
    (pages / "broken.md").write_text(
        "[a](docs/nowhere.md), [b](docs/planner.md#nowhere) and [c](docs/planner.md)\n"
    )
    done = site.build(tmp_path / "site", docs_dir=str(pages), nav=None, plugins=["search"])
    assert done.returncode != 0
    assert "'docs/nowhere.md'" in done.stderr and "'docs/planner.md#nowhere'" in done.stderr
    assert done.stderr.count("contains a link") == 2
