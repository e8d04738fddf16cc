"""Which torch says what was changed in place: then an output is computed again."""

import pytest
from torch._C._autograd import SavedTensor

SAYS = hasattr(SavedTensor, "unpack")  # torch 2.11 does not
needs_to_be_told = pytest.mark.skipif(not SAYS, reason="this torch does not say what was changed")
