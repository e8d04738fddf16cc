"""Random layers divided over 1, 2, 3, 4 and 8 ranks give what one process gives."""

import json

import pytest
from support import forked

SCRIPT = forked.TESTS / "support" / "rank_cases.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    forked.run(folder, SCRIPT, folder, 8, 0, 60, ranks=8, timeout=600)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(8)]


def test_every_rank_has_what_one_process_has(found):
    assert [rank["wrong"] for rank in found] == [{}] * 8


def test_every_way_was_taken(found):
    ways = found[0]["how"]
    for way in ("passed on", "by a scan of maps over ranks", "as far as they reach"):
        assert sum(n for text, n in ways.items() if way in text) > 2
