"""Chains over time: `nn.RNN`, `nn.GRU` and `nn.LSTM`."""

from bppsa_lightning.recurrent import op_over_ranks
from bppsa_lightning.recurrent.cell_loops import cost as cost_of_loop
from bppsa_lightning.recurrent.cell_loops import watch as watch_cells
from bppsa_lightning.recurrent.dropouts import attach_dropouts, count_dropouts
from bppsa_lightning.recurrent.layer import RecurrentChain
from bppsa_lightning.recurrent.support import is_candidate
from bppsa_lightning.recurrent.support import unsupported_module as unsupported
