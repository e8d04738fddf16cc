"""What a process computes, and with how many threads, as JSON: for tests/test_threads.py."""

import json
import multiprocessing
import sys

import torch
from torch import nn

import bppsa_lightning as bl


def layer_and_input():
    torch.manual_seed(0)
    layer = nn.GRU(20, 20)
    bl.attach(layer, "linear")
    return layer, torch.rand(50, 16, 20)


def worked():
    """{"threads": torch's, "regions": of several threads so far, "gradients": …}."""
    layer, x = layer_and_input()
    before = sum(torch.ops.bppsa.crew_regions())
    layer(x)[0].sum().backward()
    regions = sum(torch.ops.bppsa.crew_regions()) - before
    return {
        "threads": torch.get_num_threads(),
        "regions": regions,
        "gradients": layer.weight_hh_l0.grad.flatten().tolist(),
    }


class Worked(torch.utils.data.Dataset):
    """A data set whose samples are computed by an attached layer."""

    def __len__(self):
        return 2

    def __getitem__(self, _):
        return json.dumps(worked())


def in_a_fork(after, before=None):
    """What a child of `os.fork` returns, which may be stuck: None after 60 seconds."""
    if before is not None:
        before()
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=lambda: writer.send(after()))
    child.start()
    try:
        return reader.recv() if reader.poll(60) else None
    finally:
        child.kill()
        child.join()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["fork", "busy"]:
            torch.set_num_threads(2)
            found = in_a_fork(worked, worked)
        case ["fork", "idle"]:
            found = in_a_fork(worked)
        case ["loader", method]:
            torch.set_num_threads(2)
            worked()
            loader = torch.utils.data.DataLoader(
                Worked(), batch_size=None, num_workers=2, multiprocessing_context=method
            )
            found = [json.loads(sample) for sample in loader]
        case _:
            found = worked()
    print(json.dumps(found))
