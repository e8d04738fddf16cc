"""`bppsa bench`: layers, inputs and results as in the model; times; memory; the picture."""

import io
import re
import sys
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset

from bppsa_lightning.attach import attach
from bppsa_lightning.cli.bench import clock, layers, measure, memory, picture, tensors
from bppsa_lightning.cli.bench.agreement import agreement, relative_error
from bppsa_lightning.cli.bench.clock import Seconds
from bppsa_lightning.cli.bench.step import WholeStep


class Tagger(nn.Module):
    """Two chains, one of them called twice and with an initial state; dropout."""

    def __init__(self, hidden=6, loops=False):
        super().__init__()
        self.encoder = nn.LSTM(5, hidden, num_layers=2, dropout=0.3, batch_first=True)
        self.decoder = nn.GRU(hidden, hidden)
        self.cell = nn.GRUCell(hidden, hidden) if loops else None
        self.head = nn.Linear(hidden, 3)

    def forward(self, x):
        encoded, (h, _) = self.encoder(x)
        once, h = self.decoder(encoded.transpose(0, 1), h[-1:])
        twice, _ = self.decoder(once, hx=h)
        if self.cell is not None:
            twice = self.cell(twice[-1])
        return {"tags": self.head(twice), "state": h}


class Lit(pl.LightningModule):
    def __init__(self, hidden=4):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Embedding(9, 5)
        self.rnn = nn.RNN(5, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 3)

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self.head(self.rnn(self.embed(x))[0][:, -1]), y)
        self.log("loss", loss)
        return {"loss": loss}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Moody(nn.Module):
    """Computes something else in each instance: as a model that draws numbers of its own."""

    made = 0

    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(5, 4)
        Moody.made += 1
        self.factor = 1.0 + 0.1 * Moody.made

    def forward(self, x):
        return self.factor * self.rnn(x)[0]


class Exits(nn.Module):
    def forward(self, x):
        sys.exit(0)


def umlaut():
    class Umlaut(nn.Module):
        def __init__(self):
            super().__init__()
            self.schätzer = nn.GRU(5, 4)

        def forward(self, x):
            return self.schätzer(x)[0]

    return Umlaut()


def pruned():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 4))
    for module in (network[0], network[3]):
        prune.l1_unstructured(module, "weight", 0.99)
    return network


@pytest.fixture
def no_processes(monkeypatch):
    """Memory is not measured in processes of their own, which import everything."""
    monkeypatch.setattr(memory, "of_process", lambda asked, way: {"stock": 300, "bppsa": 100}[way])


def target(of):
    return f"{__file__}:{of.__name__}"


@pytest.mark.usefixtures("no_processes", "accelerate_everything")
class TestCommand:
    def test_layers_and_whole(self, command_json, tmp_path):
        picture = tmp_path / "new" / "gains.png"
        status, found = command_json(
            *("bench", target(Tagger), "--args", '{"loops": true}', "--input", "3,8,5"),
            *("--seconds", "0.3", "--picture", picture),
        )
        assert status == 0
        assert [(layer["name"], layer["calls"]) for layer in found["layers"]] == [
            ("encoder", 1),
            ("decoder", 2),
        ]
        assert found["layers"][0]["size"] == "T 8, B 3, H 6"
        assert {layer["runs on"] for layer in found["layers"]} == {"bppsa"}
        for row in (found["whole"], *found["layers"]):
            assert row["turns"] >= clock.LEAST_TURNS
            for way in ("stock", "bppsa"):
                parts = row[way]
                assert parts["both"] == pytest.approx(parts["forward"] + parts["backward"])
                assert min(parts.values()) > 0
            assert set(row["speed_up"]) == {"forward", "backward", "both"}
        ((name, reason),) = ((o["name"], o["reason"]) for o in found["not_accelerated"])
        assert name == "cell" and "one step at a time" in reason
        assert found["memory"]["bppsa"] == 100
        assert found["outputs"]["agree"] and found["gradients"]["error"] < 1e-4
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert [path.name for path in picture.parent.iterdir()] == [picture.name]

    def test_in_words(self, command):
        status, out, err = command(
            "bench", target(Tagger), "--input", "3,8,5", "--seconds", "0.2", "--algorithm", "linear"
        )
        assert status == 0
        assert re.search(r"^encoder +[\d.]+ [mu]?s +[\d.]+ [mu]?s +[\d.]+x", out, re.M)
        assert "decoder: GRU, T 8, B 3, H 6; runs on bppsa: linear; called 2 times" in out
        assert "gradients agree: largest relative error" in out
        assert "timing encoder (1 of 2 layers)" in err

    def test_a_training_step_from_a_checkpoint(self, command_json, tmp_path, monkeypatch):
        data = DataLoader(TensorDataset(torch.randint(9, (4, 7)), torch.arange(4) % 3), 2)
        trainer = pl.Trainer(
            max_steps=1, logger=CSVLogger(tmp_path), enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=False, accelerator="cpu",
        )  # fmt: skip
        trainer.fit(Lit(hidden=5), data)
        checkpoint = tmp_path / "last.ckpt"
        trainer.save_checkpoint(checkpoint)
        step = ("--training-step", "--input", "2,7:int64:9", "--input", "2:int64:3")
        status, found = command_json(
            "bench", target(Lit), "--checkpoint", checkpoint, *step, "--seconds", "0.1"
        )
        assert status == 0 and found["layers"][0]["size"] == "T 7, B 2, H 5"
        assert found["gradients"]["where"]

        unnamed, said = command_json("bench", "--checkpoint", checkpoint, *step)
        assert unnamed == 2 and "does not say of which class it is" in said["error"]
        saved = torch.load(checkpoint, weights_only=True)
        saved["hyper_parameters"]["_class_path"] = f"{Lit.__module__}.Lit"
        torch.save(saved, checkpoint)
        monkeypatch.setitem(__import__("sys").modules, Lit.__module__, SimpleNamespace(Lit=Lit))
        status, found = command_json("bench", "--checkpoint", checkpoint, *step, "--seconds", "0.1")
        assert status == 0 and found["layers"][0]["size"] == "T 7, B 2, H 5"

    def test_results_that_disagree_are_a_problem(self, command, command_json):
        asked = ("bench", target(Moody), "--input", "3,2,5", "--seconds", "0.1")
        status, out, _ = command(*asked)
        assert status == 1 and "outputs DISAGREE: relative error" in out
        status, found = command_json(*asked)
        assert status == 1 and not found["outputs"]["agree"]

    def test_a_model_that_raises(self, command):
        status, out, err = command("bench", target(Tagger), "--input", "3,8,4")
        assert status == 1 and not out
        assert "forward of Tagger raises RuntimeError: input.size(-1) must be equal" in err
        status, _, err = command("bench", target(Tagger), "--args", '{"h": 1}', "--input", "3")
        assert status == 1 and "Tagger(h=1) raises TypeError" in err

    # (Not without a code: after a W&B run in this process sys.exit is W&B's, whose default is 0.)
    @pytest.mark.parametrize("code, said", [("0", "0"), ("None", ""), ("'gone'", "'gone'")])
    def test_a_file_or_a_model_that_exits(self, command, command_json, tmp_path, code, said):
        script = tmp_path / "script_that_exits.py"
        script.write_text(f"import sys\nmain = print\nsys.exit({code})\n")
        asked = ("bench", f"{script}:main", "--input", "3")
        status, out, err = command(*asked)
        assert status == 1 and not out
        assert f"{script} calls sys.exit({said}); guard what" in err and "__name__" in err
        status, found = command_json(*asked)
        assert status == 1 and "calls sys.exit" in found["error"]
        status, _, err = command("bench", target(Exits), "--input", "3")
        assert status == 1 and "forward of Exits calls sys.exit(0)" in err

    def test_names_that_the_terminal_does_not_know(self, command, monkeypatch):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
        status, out, _ = command("bench", target(umlaut), "--input", "3,2,5", "--seconds", "0.1")
        assert status == 0 and "sch\\xe4tzer: GRU" in out

    @pytest.mark.parametrize("place", ["file/gains.png", "folder.png"])
    def test_a_picture_that_cannot_be_written_is_named_first(
        self, command, monkeypatch, tmp_path, place
    ):
        (tmp_path / "file").write_text("no folder")
        (tmp_path / "folder.png").mkdir()
        before = sorted(tmp_path.rglob("*"))
        monkeypatch.setattr(measure, "bench", None)  # is not reached
        asked = ("bench", target(Tagger), "--input", "3,8,5", "--picture", tmp_path / place)
        status, out, err = command(*asked)
        assert status == 1 and not out and "Traceback" not in err
        assert f"--picture: {tmp_path / place} cannot be written (" in err
        assert sorted(tmp_path.rglob("*")) == before

    def test_a_picture_that_cannot_be_written_in_the_end(self, command, monkeypatch, tmp_path):
        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(picture.os, "replace", full)
        asked = ("bench", target(umlaut), "--input", "3,2,5", "--seconds", "0.1")
        status, _, err = command(*asked, "--picture", tmp_path / "gains.png")
        assert status == 1 and "cannot be written (No space left on device)" in err
        assert not list(tmp_path.iterdir())

    def test_a_model_without_layers_for_us(self, command):
        asked = ("--args", '{"in_features": 3, "out_features": 2}', "--input", "4,3")
        status, out, _ = command("bench", "torch.nn:Linear", *asked, "--seconds", "0.1")
        assert status == 0 and "bppsa accelerates no layer of this model." in out

    @pytest.mark.usefixtures("every_layer_is_sparse")
    def test_pruned_layers(self, command_json):
        asked = ("bench", target(pruned), "--input", "2,3,8,8", "--seconds", "0.2")
        status, found = command_json(*asked)
        assert status == 0, (found["outputs"], found["gradients"])
        assert [(layer["type"], layer["how"]) for layer in found["layers"]] == [
            ("pruned Conv2d", "sparse"),
            ("pruned Linear", "sparse"),
        ]


@pytest.mark.parametrize("ours", [False, True])
def test_a_layer_alone_computes_what_it_does_in_the_model(ours):
    """Gradients of its parameters, for the first of its calls."""
    torch.manual_seed(1)
    model = Tagger()
    step = WholeStep(model, [torch.randn(3, 8, 5)], training_step=False)
    step()
    wanted = {name: p.grad.clone() for name, p in model.encoder.named_parameters()}
    recorded = layers.record(model, ["encoder", "decoder"], step)
    assert (recorded["encoder"].calls, recorded["decoder"].calls) == (1, 2)
    assert recorded["decoder"].args[1].requires_grad
    if ours:
        attach(model, "linear")
    layers.LayerStep(model.encoder, recorded["encoder"], torch.device("cpu"))()
    for name, parameter in model.encoder.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-4, atol=1e-6)


def test_a_model_may_change_its_input():
    """Each step is given the same numbers, which were once those that the last one had left."""

    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            x += 1
            return x * self.scale

    x = torch.zeros(2, 3)
    step = WholeStep(Shifted(), [x], training_step=False)
    for _ in range(2):
        step()
        assert step.results()[0]["output 0"].eq(1).all() and x.eq(0).all()


def test_ways_take_turns():
    calls = []

    def way(name, forward, backward):
        def step():
            calls.append(name)
            return Seconds(forward, backward)

        return step

    found = clock.compared(way("stock", 0.2, 0.6), way("ours", 0.1, 0.0), seconds=1e-9)
    assert found.turns == clock.LEAST_TURNS
    assert calls == ["stock", "ours"] * (1 + clock.LEAST_TURNS)
    assert found.speed_up == {"forward": 2.0, "backward": None, "both": pytest.approx(8.0)}
    assert found.stock.both == pytest.approx(0.8)

    calls.clear()
    clock.compared(way("stock", 1e-3, 0), way("ours", 1e-4, 0), seconds=12e-3)
    turn = ["stock"] * 2 + ["ours"] * 11  # of about the same duration, and one that warms up
    assert calls[:2] == ["stock", "ours"] and calls[2:15] == turn


@pytest.mark.parametrize(
    "found, expected, error",
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [1.0, 1.0], 1.0),
        ([0.0], [0.0], 0.0),
        ([1e-9], [0.0], float("inf")),
        ([1.0, float("nan")], [1.0, float("nan")], 0.0),
        ([1.0, float("nan")], [1.0, 1.0], float("inf")),
        ([1.0], [1.0, 1.0], float("inf")),
        ([], [], 0.0),
    ],
)
def test_relative_error(found, expected, error):
    assert relative_error(torch.tensor(found), torch.tensor(expected)) == error


def test_agreement_names_the_worst():
    stock = {"a": torch.ones(2), "b": torch.ones(2), "n": torch.arange(2)}
    fine = agreement(stock, {**stock, "b": torch.ones(2) * (1 + 1e-5)})
    assert fine.where == "b" and fine.holds and fine.error == pytest.approx(1e-5, rel=0.1)
    assert not agreement(stock, {**stock, "b": torch.ones(2) * 1.01}).holds
    assert agreement(stock, {**stock, "n": torch.arange(2) + 1}).where == "n"
    assert not agreement(stock, {"a": torch.ones(2), "n": torch.arange(2)}).holds
    assert agreement({}, {}).holds


def test_tensors_in_whatever_a_module_takes():
    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    value = {"x": [torch.ones(1), (packed, 5)], "y": None}
    assert [t.numel() for t in tensors.within(value)] == [1, 8]
    double = tensors.mapped(value, lambda t: 2 * t)
    assert double["x"][1][0].data.sum() == 16 and double["x"][1][1] == 5
    assert torch.equal(double["x"][1][0].batch_sizes, packed.batch_sizes)


def test_memory_is_what_a_step_takes():
    def step():
        torch.ones(50 << 20, dtype=torch.uint8)

    assert memory.growth(step) == pytest.approx(50 << 20, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("way", memory.WAYS)
def test_memory_of_a_process(way):
    """300 steps of 64 samples and 256 numbers, of which each way keeps some tens of MB."""
    asked = SimpleNamespace(
        target="torch.nn:LSTM", args='{"input_size": 256, "hidden_size": 256}', checkpoint=None,
        algorithm="linear", device="cpu", threads=1, inputs=["300,64,256"], training_step=False,
        trust_checkpoint=False,
    )  # fmt: skip
    numbers = 300 * 64 * 256 * 4
    assert 3 * numbers < memory.of_process(asked, way) < 30 * numbers


def test_what_a_process_is_asked(command):
    """Its arguments are those of this one."""
    from bppsa_lightning.cli.main import parser

    given = [
        *("bench", "a:B", "--args", "{}", "--input", "1,2", "--input", "3:int64:4"),
        *("--training-step", "--threads", "2", "--algorithm", "blelloch"),
    ]
    asked = parser().parse_args(given)
    there = parser().parse_args(memory.command(asked, "bppsa"))
    different = {k for k, v in vars(asked).items() if getattr(there, k) != v}
    assert different == {"memory_of", "json"}
