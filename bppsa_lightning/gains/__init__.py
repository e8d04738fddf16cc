"""What a training gains over stock PyTorch: the layers of some of its steps, run both ways."""

from bppsa_lightning.gains.comparison import Comparison
from bppsa_lightning.gains.recording import Recording
