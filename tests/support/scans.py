"""Scans of any step, by windows: cases, and what became of them."""

import copy

import torch

import bppsa_lightning as bl
from bppsa_lightning.steps import scans_of
from experiments.benchmarks.loops import first_state, inputs_of
from support.windows import leaves


def windows(step, init, xs, **more):
    return bl.scan(step, init, xs, algorithm="speculative", **more)


def known(module):
    """What became of the last scan of a module."""
    return scans_of(module.parameters())[-1]


def in_double(module):
    return copy.deepcopy(module).double()


def case(cell, T, B, I=5, H=9, seed=0):
    torch.manual_seed(seed)
    step = cell(I, H)
    return step, leaves(first_state(step, B)), leaves(inputs_of(step, T, B, I))
