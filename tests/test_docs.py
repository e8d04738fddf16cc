"""README and docs: short, linked, true to the records, to the code and to what snippets print."""

import ast
import importlib.util
import json
import re
from pathlib import Path
from statistics import median

import pytest
import torch
import yaml
from torch import nn

import bppsa_lightning as bl
from experiments import numbers

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
RECORDS = ROOT / "experiments" / "records"


def script(name):
    """A script of docs/, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


# --- the pages themselves ------------------------------------------------------------------------


def test_the_readme_is_short():
    text = README.read_text()
    assert len(text.splitlines()) <= 150
    assert len(text.split()) <= 1800


@every_page
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)\s]+)\)", without_code(page.read_text()))
    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target.read_text()), link


def test_the_readme_leads_to_every_page():
    linked = re.findall(r"\]\(([^)#\s]+\.md)", README.read_text())
    assert {page.relative_to(ROOT).as_posix() for page in PAGES} - {"README.md"} <= set(linked)


def test_pages_that_messages_name_exist():
    """Messages send readers to a page of docs/, sometimes to a heading of it."""
    for file in sorted((ROOT / "bppsa_lightning").rglob("*.py")):
        for page, anchor in re.findall(r"docs/(\w+\.md)(?:#([\w-]+))?", file.read_text()):
            text = (ROOT / "docs" / page).read_text()
            assert not anchor or anchor in anchors(text), f"{file.name}: {page}#{anchor}"


def test_messages_in_the_table_of_errors_are_said_somewhere():
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    table = re.search(r"### By message\n(.*?)\n## ", text, re.DOTALL).group(1)
    messages = [re.findall(r"`(.*?)`", row.split("|")[0]) for row in table.split("\n| ")[2:]]
    said = [
        node.value
        for file in (ROOT / "bppsa_lightning").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert len(messages) >= 8 and all(messages)
    for part in (part for message in messages for part in message):
        assert any(part in text for text in said), part


def without_code(text):
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def anchors(text):
    """Of headings, as GitHub makes them, and of explicit ids."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.M)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)"', text))


def test_anchors_are_those_of_github():
    text = (
        '# How do I overrule it?\n## `explain`, in full\n<a id="cells"></a>\n```\n# no heading\n```'
    )
    assert anchors(text) == {"how-do-i-overrule-it", "explain-in-full", "cells"}


@every_page
def test_markers_within_a_line_do_not_begin_it(page):
    """Markdown takes a line that begins with a comment for HTML, links and all."""
    for line in page.read_text().splitlines():
        if line.startswith("<!--"):
            assert line.endswith("-->") and line.count("<!--") == 1, line


@every_page
def test_files_and_modules_and_targets_that_it_names_exist(page):
    text = page.read_text()
    folders = [ROOT, ROOT / "bppsa_lightning", ROOT / "experiments"]
    for path in re.findall(r"`([\w./-]+\.(?:py|h|cpp|cuh?|yaml|json|md|txt))`", text):
        if not path.startswith("runs/"):
            assert any((folder / path).is_file() for folder in folders), path
    for module in re.findall(r"python -m ((?:experiments|bppsa_lightning)[\w.]*\w)\b", text):
        assert importlib.util.find_spec(module), module
    targets = re.findall(r"^([\w-]+(?: [\w-]+)*):", (ROOT / "Makefile").read_text(), re.M)
    known = {target for line in targets for target in line.split()}
    for line in re.findall(r"(?:^|`)make ((?:-k )?[a-z][\w -]*)", text, re.M):
        for target in line.split("  ")[0].split():
            assert target in known or target == "-k" or target.isupper(), target  # a variable


# --- snippets and pictures -----------------------------------------------------------------------


@every_page
def test_snippets_run_and_print_what_is_shown(page):
    text = page.read_text()
    assert script("run_snippets").run_page(text) == text


def test_a_snippet_that_prints_something_else_is_noticed():
    page = "```python\nprint(1 + 1)\n```\n\n<!-- prints -->\n```text\n3\n```\n"
    assert script("run_snippets").run_page(page) == page.replace("3", "2")


def test_a_snippet_that_fails_is_noticed():
    with pytest.raises(ZeroDivisionError):
        script("run_snippets").run_page("```python\n1 / 0\n```\n")


def test_the_readme_s_pruning_leaves_no_layer_empty():
    """Layer by layer every layer keeps its share; of the whole network's smallest, not."""
    text = README.read_text()
    snippet = re.search(r"```python\n(pruning = .*?)```", text, re.DOTALL).group(1)
    assert min(densities(snippet)) > 0.02
    worldwide = snippet.replace("use_global_unstructured=False", "use_global_unstructured=True")
    assert worldwide != snippet and min(densities(worldwide)) == 0


def densities(snippet):
    """The share of weights that each layer keeps; the first layer's are small."""
    run_snippets = script("run_snippets")
    names = {**run_snippets.prelude(), "bl": bl}
    names["Trainer"] = importlib.import_module("lightning.pytorch").Trainer
    layers = [m for m in names["image_model"].modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        layers[0].weight.mul_(1e-3)
    with run_snippets._as_on_the_pages():
        exec(snippet, names)
    return [float((layer.weight != 0).float().mean()) for layer in layers]


def test_the_yaml_of_pruning_is_what_the_callback_takes():
    text = (ROOT / "docs" / "pruning.md").read_text()
    (callback,) = yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL).group(1))[
        "trainer"
    ]["callbacks"]
    assert callback["class_path"] == "bppsa_lightning.SparseJacobianPruning"
    assert not bl.SparseJacobianPruning(**callback["init_args"])._use_global_unstructured


def test_the_picture_of_the_code_is_the_code_s():
    draw = script("draw_architecture")
    assert draw.PICTURE.read_text() == draw.draw()


def test_the_picture_s_arrows_are_imports_and_includes(tmp_path):
    draw = script("draw_architecture")
    package, csrc = tmp_path / "package", tmp_path / "csrc"
    for path, text in {
        package / "__init__.py": "from package import top\n",
        package
        / "top.py": "from package import low\nfrom package.middle.part import f\nimport torch",
        package / "middle" / "__init__.py": "",
        package / "middle" / "part.py": "from .. import low\nfrom ..low import g\n",
        package / "low.py": "import os\n",
        csrc / "cpu" / "levels" / "a.cpp": '#include "../../scan/b.h"\n#include <vector>\n',
        csrc / "scan" / "b.h": '#include "c.h"\n#include "requests/d.h"\n',
        csrc / "scan" / "c.h": '#include "not/here.h"\n',
        csrc / "requests" / "d.h": "",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    graph = draw.package_graph(package)
    assert graph == {"top": {"low", "middle"}, "middle": {"low"}, "low": set()}
    assert draw.csrc_graph(csrc) == {"cpu": {"scan"}, "scan": {"requests"}, "requests": set()}
    assert draw.rows(graph) == [["top"], ["middle"], ["low"]]
    assert draw.essential(graph) == [("middle", "low"), ("top", "middle")]


def test_a_circle_or_a_part_without_a_caption_has_no_picture():
    draw = script("draw_architecture")
    with pytest.raises(ValueError, match="circle has no picture: a -> b -> a"):
        draw.rows({"a": {"b"}, "b": {"a"}})
    with pytest.raises(ValueError, match="no caption for new; captions of what is not there: old"):
        draw.check_captions({"new": set()}, {"old": "…"})


# --- numbers -------------------------------------------------------------------------------------


def record(name):
    return json.loads((RECORDS / f"{name}.json").read_text())


@pytest.mark.parametrize("page", numbers.pages(), ids=lambda page: page.name)
def test_quoted_numbers_are_those_of_the_records(page):
    assert numbers.update(page, write=False) == []


def test_every_block_of_numbers_is_quoted():
    quoted = {name for page in PAGES for _, name, _, _ in numbers.MARKED.findall(page.read_text())}
    assert quoted == {*numbers.BLOCKS, "name"}  # CONTRIBUTING's example


def test_the_first_number_is_that_of_the_table_below_it():
    text = README.read_text()
    seconds = {who: record("bitstream_rnn")[who]["seconds"]["step"] for who in ("stock", "bppsa")}
    said = re.search(r"takes <!-- .*? -->([\d.]+) ms instead of ([\d.]+) ms", text).groups()
    assert [float(n) for n in said] == pytest.approx(
        [seconds["bppsa"] * 1e3, seconds["stock"] * 1e3], rel=2e-3
    )


def test_the_readme_s_gains_are_those_of_the_benchmark():
    rows = {
        (r["cell"], r["B"], r["T"], r["H"]): r
        for r in record("benchmark_recurrent_cpu")["rows"]
        if (r["H"], r["I"]) in ((20, 1), (128, 128))
    }
    found = re.findall(
        r"^\| `nn\.(RNN|GRU|LSTM)` \| B (\d+), T ([\d,]+), H (\d+) \| Intel \| ([\d.]+) ms "
        r"\| ([\d.]+) ms \| (\**)([\d.]+)x\** \| (yes|no) \|$",
        README.read_text(),
        re.M,
    )
    assert len(found) >= 5
    for cell, B, T, H, stock, ours, bold, ratio, runs in found:
        row = rows[cell, int(B), int(T.replace(",", "")), int(H)]
        assert float(stock) == pytest.approx(row["stock"]["both"] * 1e3, rel=0.03)
        assert float(ours) == pytest.approx(row["ours"]["both"] * 1e3, rel=0.03)
        assert float(ratio) == pytest.approx(row["ratio_stock"]["both"], rel=0.02)
        assert bool(bold) == (row["ratio_stock"]["both"] < 1) and (runs == "yes") == row["scanned"]


def test_the_readme_shows_where_stock_wins():
    gains = re.search(r"numbers: gains -->(.*?)<!-- end", README.read_text(), re.DOTALL).group(1)
    lost = [line for line in gains.splitlines() if "**0." in line]
    assert any("Intel" in line for line in lost) and any("H200" in line for line in lost)
    assert all(line.endswith(("| no |", "| only if asked |")) for line in lost)


@pytest.mark.parametrize(
    "page, name",
    [
        ("README.md", "grid_recurrent_cpu"),
        ("docs/planner.md", "amd_epyc/grid_recurrent_cpu"),
        ("docs/planner.md", "packed_recurrent_cpu"),
    ],
)
def test_what_it_says_of_all_sizes_is_what_the_record_says(page, name):
    rows = record(name)["rows"]
    ratios = [
        r["ratio"] if "ratio" in r else r["ratio_stock"]["both"] for r in rows if r["scanned"]
    ]
    slower = [ratio for ratio in ratios if ratio < 1]
    said = re.search(
        rf"\d+ sizes\]\([\w./]*{name}\.json\)[^.]*\. PyTorch is faster for (\d+) of them, and "
        r"keeps them\. The other (\d+) run on our kernels: ([\d.]+)x as fast in the median, "
        r"(never slower|slower at (\d+) size)",
        (ROOT / page).read_text(),
    )
    left, run, middle, _, count = said.groups()
    assert (int(left), int(run)) == (len(rows) - len(ratios), len(ratios))
    assert float(middle) == pytest.approx(median(ratios), abs=0.06)
    assert int(count or 0) == len(slower)


def test_curves_of_the_gru_on_music_stay_together():
    said = (ROOT / "docs" / "experiments.md").read_text()
    fewest = min(row["steps_together"] for row in record("irmas_gru")["rows"])
    assert f"the first {fewest} of" in said


def test_what_it_says_of_the_scan_over_depth_is_what_the_record_says():
    said = (ROOT / "docs" / "plain_pytorch.md").read_text()
    totals = record("figure10")["totals"]
    for key in ("bp_surviving", "bp_dense", "scan", "critical_path", "scan_in_factors",
                "critical_path_in_factors"):  # fmt: skip
        assert f"{round(totals[key] / 1e6)} million" in said, key
    for key in ("steps_critical_path", "steps_bp", "steps_critical_path_in_factors"):
        assert f"{totals[key]} steps" in said, key


def test_one_thing_has_one_number():
    """All that is quoted of the GRU on features S stands in one table, with what it measures."""
    text = (ROOT / "docs" / "experiments.md").read_text()
    table = re.search(r"numbers: gru_numbers -->(.*?)<!-- end", text, re.DOTALL).group(1)
    trained = next(row for row in record("irmas_gru")["rows"] if row["features"] == "S")
    alone = record("gru_breakdown_cpu")["rows"][0]
    for ratio in (
        alone["ratio_stock"]["both"], alone["ratio_stock"]["step"],
        trained["speed_up"]["step"], trained["speed_up"]["training"],
    ):  # fmt: skip
        assert re.search(rf"\| {ratio:.{0 if ratio >= 20 else 1}f}x \|", table), ratio
