"""The documentation site in a browser: light, dark and on a phone, without errors; its search."""

import shutil

import pytest
from support import site

pytest.importorskip("mkdocs", reason="needs mkdocs, of the extra docs")
playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright, of the extra docs"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
if not CHROMIUM:
    pytest.skip("needs a chromium (Debian: apt-get install chromium)", allow_module_level=True)

LIGHT = {"color_scheme": "light", "viewport": {"width": 1280, "height": 800}}
DARK = {**LIGHT, "color_scheme": "dark"}
PHONE = {"color_scheme": "light", "viewport": {"width": 390, "height": 844}, "is_mobile": True,
         "has_touch": True}  # fmt: skip
# Of a page: pictures that did not come, and how much wider than the screen it is.
BROKEN = "[...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src)"
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return site.built(tmp_path_factory)


@pytest.fixture(scope="module")
def address(folder):
    with site.served(folder) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """One tab, and what went wrong in it: errors of scripts, and whatever did not load."""

    def __init__(self, browser, address, how):
        self.context = browser.new_context(**how)
        self.page, self.wrong, self.address = self.context.new_page(), [], address
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", self._asked)
        self.page.on("response", self._answered)
        self.page.on("requestfailed", self._failed)

    def _said(self, message):
        if message.type in ("error", "warning"):
            self.wrong.append(message.text)

    def _answered(self, response):
        if response.status >= 400:
            self.wrong.append(f"{response.status} {response.url}")

    def _failed(self, request):
        if "ERR_ABORTED" not in request.failure:  # under way when the next page was opened
            self.wrong.append(f"{request.failure} {request.url}")

    def _asked(self, request):
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.wrong.append(f"from elsewhere: {request.url}")


@pytest.mark.parametrize("how", [LIGHT, DARK, PHONE], ids=["light", "dark", "phone"])
def test_every_page_opens_without_an_error(browser, folder, address, how):
    visit = Visit(browser, address, how)
    background = set()
    for name in site.pages(folder):
        visit.page.goto(address + name, wait_until="load")
        assert visit.page.evaluate(BROKEN) == [], name
        assert visit.page.evaluate(TOO_WIDE) <= 0, f"{name} is wider than the screen"
        assert visit.page.locator("h1").count() == 1, name
        background.add(visit.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert visit.wrong == []
    dark = all(int(n) < 80 for n in background.pop().strip("rgba()").split(",")[:3])
    assert dark == (how is DARK) and not background
    visit.context.close()


@pytest.mark.parametrize(
    "words, page", [("attach", "api/attach/"), ("Invalid strategy name", "docs/troubleshooting/")]
)
def test_the_search_finds(browser, address, words, page):
    visit = Visit(browser, address, LIGHT)
    visit.page.goto(address)
    visit.page.locator("[data-md-component=search-query]").click()
    visit.page.keyboard.type(words)
    results = visit.page.locator(".md-search-result__link")
    results.first.wait_for(timeout=20_000)
    found = [result.get_attribute("href") for result in results.all()]
    assert any(page in link for link in found), found
    assert visit.wrong == []
    visit.context.close()


def test_what_goes_wrong_is_noticed(browser, address, tmp_path):
    (tmp_path / "index.html").write_text(
        "<img src=nowhere.png><script>undefined_name()</script>"
        "<link rel=stylesheet href=http://127.0.0.1:9/style.css>"
    )
    with site.served(tmp_path) as broken:
        visit = Visit(browser, broken, LIGHT)
        visit.page.goto(broken, wait_until="load")
        assert len(visit.page.evaluate(BROKEN)) == 1
    said = " ".join(visit.wrong)
    assert "404" in said and "undefined_name" in said and "from elsewhere" in said
    visit.context.close()
