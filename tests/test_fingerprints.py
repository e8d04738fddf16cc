"""The hashes that tell two versions' results apart do tell them apart."""

import json

import fingerprints
import pytest
import torch


def test_a_digest_knows_bits_shapes_dtypes_and_absence():
    x = torch.tensor([0.0, 1.0])
    others = [torch.tensor([-0.0, 1.0]), x.double(), x[None], torch.tensor([0.0, 1.0 + 1e-7]), None]
    digests = [fingerprints.digest([tensor]) for tensor in [x, *others]]
    assert len(set(digests)) == len(digests)
    assert fingerprints.digest([x.clone()]) == digests[0]
    columns = torch.stack([x, x + 1], 1)[:, 0]  # strided
    assert fingerprints.digest([columns]) == digests[0]
    dense = torch.eye(2)
    assert fingerprints.digest([dense.to_sparse_csr()]) != fingerprints.digest([dense])


@pytest.mark.parametrize("family", ["scans", "jacobians"])
def test_cases_have_names_of_their_own_and_repeat_themselves(family):
    cases = list(getattr(fingerprints, family)())
    names = [name for name, _ in cases]
    assert len(set(names)) == len(names)
    for _, run in cases[:: max(1, len(cases) // 8)]:
        assert fingerprints.digest(run()) == fingerprints.digest(run())


def test_files_that_differ_in_one_case_are_told_apart(tmp_path, capsys):
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps({"a": "1", "b": "2", "old": "3"}))
    after.write_text(json.dumps({"a": "1", "b": "2", "new": "3"}))
    assert fingerprints.compare(before, after) == 0
    assert "2 of 2 cases" in capsys.readouterr().out
    after.write_text(json.dumps({"a": "1", "b": "other"}))
    assert fingerprints.compare(before, after) == 1
    assert "differs: b" in capsys.readouterr().out
    after.write_text("{}")
    assert fingerprints.compare(before, after) == 1  # nothing compared is nothing shown
