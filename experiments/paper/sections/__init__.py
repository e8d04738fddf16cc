"""The sections of the records' page, in its order; a new experiment is one more file and row.

Plain Python: what records say is written without torch and matplotlib.
"""

from experiments.paper.sections import (
    bitstream_rnn,
    depth_scaling,
    figure10,
    gpu_sweep,
    grid,
    gru_breakdown,
    irmas_gru,
    lenet5,
    newton,
    pruned_vgg11,
    scaling,
    scan_pictures,
    sweep,
    table1,
    workers,
)

SECTIONS = (
    bitstream_rnn.SECTION,
    bitstream_rnn.SHORT,
    sweep.RNN,
    sweep.GRU,
    gpu_sweep.SECTION,
    irmas_gru.SECTION,
    irmas_gru.SHORT,
    gru_breakdown.SECTION,
    lenet5.SECTION,
    table1.SECTION,
    figure10.SECTION,
    scan_pictures.SECTION,
    workers.SECTION,
    scaling.SECTION,
    depth_scaling.SECTION,
    pruned_vgg11.SECTION,
    grid.SECTION,
    newton.SECTION,
)
