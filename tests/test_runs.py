"""From one run of a Trainer to the next: replacements are used again, as new ones."""

import copy
import gc
import pickle
import weakref
from types import SimpleNamespace

import pytest
import torch
from support.helpers import Classifier, I, T, data, trainer
from torch import nn
from torch.nn.utils import prune

import bppsa_lightning as bl
from bppsa_lightning.runs import Runs

FIT, TEST = (SimpleNamespace(state=SimpleNamespace(fn=fn)) for fn in ("fit", "test"))


class Noted(Classifier):
    """Keeps what stood in the place of its layers' forwards, run by run."""

    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
        prune.l1_unstructured(self.image[0], "weight", 0.9)
        self.runs = []

    def forward(self, x):
        found = self.rnn.__dict__["forward"], self.image[0].__dict__["forward"]
        self.runs.append((*found, found[0].calls, found[1].pattern))
        return super().forward(x) + self.image(x.unsqueeze(1)).mean()

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def on_after_backward(self):
        """Nothing to look at."""


@pytest.mark.parametrize("how", [lambda: {"strategy": "bppsa"}, lambda: _by_callback()])
def test_each_run_has_the_same_objects_as_new(how):
    model = Noted()
    run = trainer(**how())
    for _ in range(2):
        run.predict(model, data())
    run.fit(model, data())
    assert len(model.runs) == 12
    chain, layer, _, pattern = model.runs[0]
    assert all(found[:2] == (chain, layer) and found[3] is pattern for found in model.runs)
    assert [found[2] for found in model.runs] == [0, 1, 2, 3] * 3  # calls so far in this run
    assert "forward" not in model.rnn.__dict__


def _by_callback():
    return {"strategy": "auto", "callbacks": [bl.Attach()]}


def test_a_mask_that_changed_between_runs_is_seen():
    model, run = Noted(), trainer("bppsa")
    run.predict(model, data())
    prune.l1_unstructured(model.image[0], "weight", 0.5)
    run.predict(model, data())
    first, last = model.runs[0][3], model.runs[-1][3]
    assert last is not first and last.nnz < first.nnz


def test_a_compiled_model_is_compiled_once():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    class Compiled(Classifier):
        def predict_step(self, batch, batch_idx):
            return self(batch[0])

    model = Compiled()
    expected = torch.cat(trainer("auto").predict(model, data()))
    compiled, run = torch.compile(model, backend=backend, dynamic=False), trainer("bppsa")
    for _ in range(3):
        torch.testing.assert_close(torch.cat(run.predict(compiled, data())), expected)
    assert len(graphs) == 1
    torch._dynamo.reset()


@pytest.mark.parametrize("changed", ["hidden_size", "layer"])
def test_another_layer_in_the_place_of_one(changed):
    """A layer that is replaced has a chain of its own; one that was changed is looked at again."""
    model, run = Classifier(), trainer("bppsa")
    model.predict_step = lambda batch, *_: model(batch[0])
    run.predict(model, data())
    layer = nn.RNN(I, 5, batch_first=True)
    if changed == "layer":
        model.rnn = layer
    else:
        model.rnn.__dict__.update(layer.__dict__)
    model.head = nn.Linear(5, 3)
    x = torch.randn(2, T, I)
    expected = model(x)
    model.predict_step = lambda batch, *_: model(x)
    torch.testing.assert_close(run.predict(model, data())[0], expected)
    assert run.strategy._runs.replacements[0].config.hidden_size == 5


def test_they_go_with_their_model():
    runs, model = Runs(), nn.Sequential(nn.RNN(2, 3))
    assert runs.begin(model, TEST) == [] and runs.news
    [chain] = bl.attach(model)
    runs.end([chain])
    runs.end([])  # a teardown after an exception
    assert runs.begin(model, TEST) == [chain] and not runs.news
    runs.end([chain])
    assert runs.begin(model, FIT) == [chain] and runs.news
    runs.end([chain])
    for other in (copy.deepcopy(runs), pickle.loads(pickle.dumps(runs))):
        assert other.begin(model, TEST) == [] and other.news
    layer = weakref.ref(model[0])
    del model, chain
    gc.collect()
    assert runs.replacements == [] and layer() is None


def test_a_stack_s_products_are_not_kept():
    runs, model = Runs(), nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    runs.begin(model, FIT)
    [chain] = bl.attach(model, "blelloch")
    runs.end([chain])
    assert runs.replacements == [] and "forward" not in model.__dict__


def test_of_another_model_nothing_is_used():
    runs, (one, other) = Runs(), (nn.Sequential(nn.RNN(2, 3)) for _ in range(2))
    runs.begin(one, TEST)
    runs.end(bl.attach(one))
    assert runs.begin(other, TEST) == [] and runs.news
    assert runs.begin(one, TEST) == [] and runs.news
