"""The data of a report, with something in each of its sections."""

import math


def report_data():
    steps = list(range(1, 41))
    parts = {"forward": 2.0, "backward": 1.0, "optimizer": 0.5, "rest": 0.1}
    seconds = {part: n / 1e3 for part, n in parts.items()}
    stock = {**seconds, "forward": 0.004, "backward": 0.0062}
    return {
        "format": "bppsa_report/1",
        "run": {
            "model": "Model", "strategy": "bppsa", "parameters": 12345, "epochs": 2, "steps": 40,
            "started": "2026-01-02 03:04:05 +0000", "seconds": 75.0, "ended": "finished",
        },
        "environment": {"CPU": "Some CPU", "torch": "torch 2"},
        "loss": {"steps": steps, "values": [math.exp(-s / 10) for s in steps]},
        "metrics": {
            "val_loss": {"steps": [20, 40], "values": [0.5, 0.3]},
            "val_acc": {"steps": [500, 1000], "values": [0.5, 0.8]},
        },
        "time": {
            "ours": {**seconds, "step": 0.0036}, "stock": {**stock, "step": 0.0108},
            "speed_ups": {"forward": 2.0, "backward": 6.2, "step": 3.0}, "note": "a note",
            "layers": [
                {"layer": "encoder", "forward": 1e-3, "backward": 1e-3, "stock_forward": 3e-3,
                 "stock_backward": 6.2e-3},
            ],
        },
        "chains": [
            {"layer": "encoder", "type": "GRU", "backward": "linear", "why": "fastest on 2 cores"}
        ],
        "pruned": [{"layer": "head", "type": "Linear", "weights": "3", "path": "sparse"}],
        "not_accelerated": [{"layer": "cell", "reason": "runs one step at a time"}],
        "patterns": [
            {"layer": "head", "type": "Linear", "shape": [2, 3], "weights": 3, "density": 0.5,
             "cells": [[1.0, 0.0, 1.0], [0.0, 0.2, 0.0]]},
        ],
        "explanation": "Model: all <accelerated>",
        "memory": {
            "parameter_bytes": 49380, "optimizer_bytes": 98760, "peak_bytes": 9e8,
            "steps": steps, "values": [8e8 + s for s in steps],
        },
    }  # fmt: skip
