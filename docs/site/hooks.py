"""Puts the repository's own pages into the site, at the places where they are in the repository.

A page of the site is a Markdown file of the repository (`PAGES`), or of `pages/` beside this file.
What a page links to beside other pages (records, pictures, sources) is copied into the site; a
folder becomes a page that lists its files. So every relative link that works on GitHub works here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "experiments/README.md",
    "experiments/records/README.md", "experiments/records/*/README.md",
)  # fmt: skip

_CODE = re.compile(r"^(```+)[^\n]*\n.*?^\1`*\s*$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)[^)]*\)")
_MARKER = re.compile(r"^(<!-- [^\n]* -->)$", re.MULTILINE)
_LIST = re.compile(r"(?<=\n)([^\n]*\S[^\n]*\n)(?=(?:[-*]|\d+\.) )")
_UNIT = re.compile(r"(?<=\d) (?=(?:s|ms|µs|MB|MiB|GB|GiB|%)(?!\w))")
_ITEM = re.compile(r"(?:[-*]|\d+\.) |\s")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the repository's pages, and the files that they link to."""
    pages = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    for path in pages:
        files.append(_copied(path, config))
    linked = {target for path in pages for target in links(path)}
    for target in sorted(linked - set(pages)):
        if target.is_dir():
            name = target.relative_to(ROOT)
            listing = File.generated(config, f"{name}/index.md", content=_listing(target))
            listing.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(listing)
            for file in _inside(target):
                files.append(_copied(file, config))
        elif target.is_file() and target.suffix != ".md":
            files.append(_copied(target, config))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """GitHub's Markdown as this site's parser reads it."""
    folder = PurePosixPath(page.file.src_uri).parent
    return "".join(
        text if is_code else _as_parsed(text, folder) for text, is_code in _parts(markdown)
    )


def links(page: Path) -> Iterator[Path]:
    """The files and folders of the repository that a page links to."""
    text = _CODE.sub("", page.read_text())
    for link in _LINK.findall(text):
        target = Path(normpath(page.parent / link))
        if target.is_relative_to(ROOT) and target.exists():
            yield target


def _copied(path: Path, config: MkDocsConfig) -> File:
    name = path.relative_to(ROOT).as_posix()
    return File.generated(config, name, abs_src_path=str(path))


def _inside(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.iterdir()) if file.is_file()]


def _listing(folder: Path) -> str:
    names = [file.name for file in _inside(folder)]
    lines = [f"# {folder.relative_to(ROOT)}", "", *(f"- [`{name}`]({name})" for name in names)]
    return "\n".join(lines) + "\n"


def _parts(markdown: str) -> Iterator[tuple[str, bool]]:
    """A page's text, cut where code begins and ends."""
    end = 0
    for code in _CODE.finditer(markdown):
        yield markdown[end : code.start()], False
        yield code[0], True
        end = code.end()
    yield markdown[end:], False


def _as_parsed(text: str, folder: PurePosixPath) -> str:
    # A table, or a list, right below a comment or a paragraph is one on GitHub alone.
    text = _MARKER.sub(r"\n\1\n", text)
    text = _LIST.sub(lambda m: m[0] if _ITEM.match(m[0]) else m[0] + "\n", text)
    text = _UNIT.sub("\N{NO-BREAK SPACE}", text)
    # A folder's page is its index.
    return _LINK.sub(lambda m: _to_index(m, folder), text)


def _to_index(link: re.Match[str], folder: PurePosixPath) -> str:
    if (ROOT / folder / link[1]).is_dir():
        return link[0].replace(link[1], f"{link[1].rstrip('/')}/index.md")
    return link[0]
