"""What the README claims is what the records say, and its snippets run."""

import importlib
import json
import re
from pathlib import Path
from statistics import median

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import bppsa_lightning as bl

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
RECORDS = ROOT / "experiments" / "records"


def test_the_table_of_the_experiment_is_that_of_its_record(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    compare = importlib.import_module("compare")
    record = json.loads((RECORDS / "bitstream_rnn.json").read_text())
    assert compare.table(record) in README
    assert record["speed_up"]["step"] > 1


def test_the_speed_ups_are_those_of_the_benchmark():
    record = json.loads((RECORDS / "benchmark_recurrent_cpu.json").read_text())
    wanted = {tuple(str(r[k]) for k in ("cell", "B", "T", "H", "I")): r for r in record["rows"]}
    found = re.findall(r"^\| (RNN|GRU|LSTM) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (.+?) ms \| "
                       r"(.+?) ms \| (.+?)x \| (.+?)x \|$", README, re.M)  # fmt: skip
    assert len(found) >= 10
    for *size, ours, stock, ratio, jax in found:
        row = wanted[tuple(size)]
        assert float(ours) == pytest.approx(row["ours"]["both"] * 1e3, abs=0.006)
        assert float(stock) == pytest.approx(row["stock"]["both"] * 1e3, abs=0.06)
        assert float(ratio) == pytest.approx(row["ratio_stock"]["both"], abs=0.06)
        assert float(jax) == pytest.approx(row["ratio_jax"]["both"], abs=0.06)


def test_what_it_says_of_the_grid_is_what_its_record_says():
    rows = json.loads((RECORDS / "grid_recurrent_cpu.json").read_text())["rows"]
    scanned = [r["ratio_stock"]["both"] for r in rows if r["scanned"]]
    said = r"Of (\d+) sizes .*? (\d+) are left to PyTorch; of the others (\d+) are slower"
    found = re.search(said, README.replace("\n", " "))
    slower = sum(ratio < 1 for ratio in scanned)
    assert [int(n) for n in found.groups()] == [len(rows), len(rows) - len(scanned), slower]


def test_what_it_says_of_the_second_machine_is_what_its_records_say():
    folder, said = RECORDS / "amd_epyc", README.replace("\n", " ")
    rows = json.loads((folder / "benchmark_recurrent_cpu.json").read_text())["rows"]
    first = [f"{row['ratio_stock']['both']:.{0 if i < 2 else 1}f}x" for i, row in enumerate(rows)]
    assert f"the first three rows come out at {first[0]}, {first[1]} and {first[2]}" in said
    rows = json.loads((folder / "grid_recurrent_cpu.json").read_text())["rows"]
    scanned = [r["ratio_stock"]["both"] for r in rows if r["scanned"]]
    [slower] = [ratio for ratio in scanned if ratio < 1]
    assert (
        f"of the {len(scanned)} sizes that are scanned one is slower than stock ({slower:.2f}x)"
        in said
    )
    assert f"the median is {median(scanned):.1f}x" in said


def test_what_it_says_of_samples_of_different_lengths_is_what_the_record_says():
    rows = json.loads((RECORDS / "packed_recurrent_cpu.json").read_text())["rows"]
    ratios = [row["ratio"] for row in rows if row["scanned"]]
    slower = sum(ratio < 1 for ratio in ratios)
    said = README.replace("\n", " ")
    assert f"Of {len(rows)} sizes (T 3 to 300, B 2 to 128, H 20 to 256" in said
    assert f"{len(ratios)} are scanned, {slower} of them slower than stock" in said
    assert f"than stock ({min(ratios):.2f}x); the median is {median(ratios):.1f}x." in said


def test_what_it_says_of_the_gru_on_music_is_what_its_record_says():
    rows = json.loads((RECORDS / "irmas_gru.json").read_text())["rows"]
    said = README.replace("\n", " ")
    fewest = min(row["steps_together"] for row in rows)
    assert fewest >= 200 and f"within 1e-4 of each other for {fewest} steps" in said
    for row in rows:
        ours, stock = (
            sum(row[who]["seconds"][part] for part in ("forward", "backward")) * 1e3
            for who in ("bppsa", "stock")
        )
        accuracies = f"{row['bppsa']['val_accuracy']:.0%} | {row['test_accuracy']:.0%}"
        accuracies = f"{row['per_class']} | {accuracies}"
        times = f"{ours:.1f} ms | {stock:.1f} ms | {stock / ours:.1f}x"
        assert f"| {row['features']} | {row['T']:,} | {times} | {accuracies} |" in README


def test_what_it_says_of_sparse_jacobians_is_what_the_records_say():
    rows = json.loads((RECORDS / "table1.json").read_text())["rows"]
    for r in rows:
        line = (
            f"| {r['layer']} | {r['sparsity']:.5f} | {r['baseline_seconds']:.1f} s "
            f"| {r['seconds'] * 1e6:.0f} µs | {r['speed_up']:.1e}x | {r['paper_speed_up']:.1e}x |"
        )
        assert line in README
        assert r["speed_up"] >= r["paper_speed_up"]
        assert round(r["sparsity"], 5) == r["paper_sparsity"]
    said = README.replace("\n", " ")
    assert ", ".join(f"{r['baseline_contiguous_seconds']:.1f} s" for r in rows[:2]) in said
    products = json.loads((RECORDS / "benchmark_products.json").read_text())
    seconds, ratio = products["seconds"], products["ratio"]
    assert (
        f"takes {seconds['ours'] * 1e3:.0f} ms, {ratio['torch']:.1f}x as fast as `torch.sparse.mm` "
        f"and {ratio['scipy']:.1f}x as SciPy; the plan {products['symbolic_seconds'] * 1e3:.0f} ms"
    ) in said
    totals = json.loads((RECORDS / "figure10.json").read_text())["totals"]
    for key, text in (
        ("bp_surviving", "{} million FLOPs an image for back-propagation"),
        ("bp_dense", "{} million with dense kernels"),
        ("scan", "{} million for the scan"),
        ("critical_path", "{} million lie on its critical path"),
    ):
        assert text.format(round(totals[key] / 1e6)) in said
    steps = f"of {totals['steps_critical_path']} steps instead of {totals['steps_bp']}"
    assert steps in said


def test_what_it_says_of_pruned_networks_is_what_the_records_say(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    compare_pruned = importlib.import_module("compare_pruned")
    assert compare_pruned.table(json.loads((RECORDS / "pruned_vgg11.json").read_text())) in README
    for r in json.loads((RECORDS / "benchmark_pruned_vgg11.json").read_text())["rows"]:
        seconds = [r["seconds"][who]["both"] * 1e3 for who in ("stock", "attached", "compact")]
        ratios = [r["ratio"]["attached"]["both"], r["ratio"]["compact"]["both"]]
        line = (
            f"| {r['density']:.0%} | {seconds[0]:.0f} ms | {seconds[1]:.0f} ms | {ratios[0]:.1f}x "
            f"| {seconds[2]:.0f} ms | {ratios[1]:.1f}x | {r['ratio']['compact']['step']:.1f}x |"
        )
        assert line in README


def test_what_it_shows_of_explain_is_what_explain_prints(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    model = importlib.import_module("pruned_vgg11").PrunedVGG11(norm=False)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            prune.random_unstructured(layer, "weight", 0.97)
    bl.attach(model)
    model(torch.rand(32, 3, 32, 32))
    shown = re.search(r"```\n(0 chains in PrunedVGG11\n.*?\n)```", README, re.S).group(1)
    assert shown == bl.explain(model) + "\n"


def test_files_that_it_names_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).is_file(), target


def test_the_snippets_run():
    model = nn.Sequential(nn.RNN(1, 20))
    assert [type(c) for c in bl.attach(model)] and model(torch.rand(7, 2, 1))[0].shape[-1] == 20
    shown = re.search(r"```\n1 chain in BitstreamRNN\n(.*?)```", README, re.S).group(1)
    header = shown.splitlines()[0].split()
    assert header == bl.explain(model).splitlines()[1].split()
    bl.detach(model)
    g = bl.ops.reverse_scan(torch.rand(3, 2, 4, 4), torch.rand(4, 2, 4))
    assert g.shape == (4, 2, 4)
