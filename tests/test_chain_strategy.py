"""Trainer(strategy="bppsa_chain"): processes that divide time train as one process does."""

import pytest
import torch
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from support import forked
from support.helpers import assert_close

import bppsa_lightning as bl

SCRIPT = forked.TESTS / "support" / "chain_training.py"


def left(folder, training, devices, *chain):
    forked.run(folder, SCRIPT, folder, training, devices, *chain)
    return [
        torch.load(folder / f"{training}_{devices}_{rank}.pt", weights_only=True)
        for rank in range(devices)
    ]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """What PyTorch has after a training in one process, by its settings."""
    found = {}

    def get(training):
        if training not in found:
            folder = tmp_path_factory.mktemp(training)
            [found[training]] = left(folder, f"{training}_one", 1)
        return found[training]

    return get


@pytest.mark.parametrize(
    ("training", "devices", "way"),
    [
        ("plain", 2, "divided over 2 ranks"),
        ("accumulated", 2, "divided over 2 ranks"),
        ("composed", 3, "by a scan of maps over ranks"),
        ("passed_on", 2, "gradients are passed on"),
        ("meets", 2, "as far as they reach"),
    ],
)
def test_a_chain_trains_as_one_process(tmp_path, one, training, devices, way):
    wanted = one(training if training in ("accumulated", "meets") else "plain")
    for rank in left(tmp_path, training, devices):
        assert rank["steps"] == wanted["steps"] >= 16
        assert rank["losses"] == pytest.approx(wanted["losses"], rel=1e-9)
        for val in ("val", "val_alone"):
            assert rank[val] == pytest.approx(wanted[val], rel=1e-9)
        assert_close(rank["weights"], wanted["weights"], 1e-9)
        assert way in rank["explanation"]
        assert f"over {devices} ranks" in rank["explanation_alone"]


@pytest.mark.slow
def test_two_chains_of_two_processes(tmp_path):
    """Each chain is one process of "ddp"."""
    ranks = left(tmp_path, "plain", 4, 2)
    for a, b in ((0, 1), (2, 3)):
        assert ranks[a]["losses"] == ranks[b]["losses"]
    assert ranks[0]["losses"] != ranks[2]["losses"]
    for rank in ranks[1:]:
        assert all(torch.equal(t, ranks[0]["weights"][n]) for n, t in rank["weights"].items())
    assert "divided over 2 ranks" in ranks[0]["explanation"]


@pytest.mark.slow
def test_torchrun_on_two_machines(tmp_path, one):
    """Two agents of torchrun, each of which takes the other for another machine."""
    port = find_free_network_port()
    agents = [
        forked.start(
            tmp_path / f"said_{node}", "torch.distributed.run", "--nnodes", 2, "--nproc-per-node",
            2, "--node-rank", node, "--master-addr", "127.0.0.1", "--master-port", port, SCRIPT,
            tmp_path, "passed_on", 2, 4, 2,
        )
        for node in range(2)
    ]  # fmt: skip
    try:
        for agent in agents:
            agent.join(240)
        assert not any(agent.exitcode for agent in agents), (tmp_path / "said_0").read_text()
    finally:
        for agent in agents:
            forked.kill(agent)
    for rank in range(4):
        found = torch.load(tmp_path / f"passed_on_2_{rank}.pt", weights_only=True)
        assert_close(found["weights"], one("plain")["weights"], 1e-9)
        assert "divided over 4 ranks" in found["explanation"]


def test_processes_that_read_different_batches_are_refused(tmp_path):
    """Each would walk its span of samples of its own."""
    said = forked.run(tmp_path, SCRIPT.with_name("chain_apart.py"), ranks=2)
    refused = "the processes of a chain have read different batches"
    for way in ("a sampler", "a part of each rank", "values", "sizes"):
        assert said.count(f"{way}: {refused}") == 2, said
    for way in ("a sampler of the chains", "all of each rank"):
        assert said.count(f"{way}: ran") == 2, said


@pytest.mark.parametrize("chain", [0, -1, 1.5, "two"])
def test_a_wrong_chain(chain):
    with pytest.raises(ValueError, match="chain: found"):
        bl.BPPSAChainStrategy(chain=chain)
