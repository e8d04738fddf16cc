"""What `make quick` leaves out is there, by the names in support/quick.py."""

from pathlib import Path

import pytest
from support.quick import LONG, ONE_IS_QUICK, SLOW

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", sorted({*LONG, *SLOW, *ONE_IS_QUICK}))
def test_names(name):
    path, _, function = name.partition("::")
    assert not function or f"def {function}(" in (HERE / path).read_text()
    assert (HERE / path).is_file()
