"""Windows of time side by side: one long sequence as a batch of short ones, verified and repaired.

Most recurrences forget. A sequence of T steps is cut into K spans of C steps; each span's first
state is guessed by walking the w steps before it from zeros, and all spans are walked as samples of
one batch: T steps become C + w. Then nothing is believed:

- forward, each span's first state is compared with the last state of the span before (`levels`),
  and a span that began elsewhere is walked again from there (`forward`);
- backward, the gradient that reaches a span's start is handed to the span before, and followed
  until it is below the rounding of the gradients it is added to (`backward`).

Nothing here knows a cell or a kernel: an `Engine` is any function of some steps' inputs and a
first state. Where its kernels take any strides, a sequence is walked where it lies (`in_place`);
where they know of windows, in one launch (`at_once`).
"""

from bppsa_lightning.windows.at_once import AtOnce
from bppsa_lightning.windows.cut import Cut, choose_cut
from bppsa_lightning.windows.engine import Engine
from bppsa_lightning.windows.forward import forget_casts
from bppsa_lightning.windows.in_place import InPlace, Windows
from bppsa_lightning.windows.levels import Levels
from bppsa_lightning.windows.look import look
from bppsa_lightning.windows.memory import LEAST_WARM, Memory
from bppsa_lightning.windows.report import Report, in_words
from bppsa_lightning.windows.speculate import checkpointed, differentiated, speculate
