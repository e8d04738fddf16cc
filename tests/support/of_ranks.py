"""A process group of gloo, for scripts that `forked.run(…, ranks=P)` starts P times."""

import faulthandler
import os
from datetime import timedelta

import torch
import torch.distributed as dist


def begin(ranks, seconds=60):
    """Joins the others; this process' rank."""
    torch.set_num_threads(1)
    faulthandler.enable()
    rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo", rank=rank, world_size=ranks, timeout=timedelta(seconds=seconds))
    return rank
