"""`bppsa calibrate`: as `bl.calibrate`, with progress; what it measures is used."""

import pytest

from bppsa_lightning import calibration
from bppsa_lightning.calibration import cpu, least, ratios, steps
from bppsa_lightning.planner import machine, tables


@pytest.fixture
def few_sizes(monkeypatch, tmp_path):
    """Of which each is measured for a moment."""
    monkeypatch.setenv(tables.FOLDER, str(tmp_path))
    monkeypatch.delenv(machine.TABLE, raising=False)
    for module, values in {
        steps: {"SIZES": (4, 8), "SAMPLES": (1, 4), "_WORK": 1 << 10, "_LEAST": 8},
        ratios: {"GRIDS": {"LSTM": ratios.Grid((3,), (2,), (5,))}},
        least: {
            "SIZES": (4, 8),
            "BATCHES": (1, 16),
            "PACKED_SIZES": (4,),
            "PACKED_BATCHES": (4, 8),
        },
    }.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(cpu, "SCANS", ((1, 20, 4), (2, 10, 8)))
    machine.forget()
    yield tmp_path
    monkeypatch.undo()
    machine.forget()


def test_it_measures_and_keeps(command, few_sizes):
    status, out, err = command("calibrate", "--seconds", "0.5")
    (table,) = few_sizes.glob("*.json")
    assert status == 0 and f"Kept in {table}" in out
    assert "Measuring recurrent layers" in err
    assert machine.cpu()["measured"]["threads"] >= 1
    assert tables.read_user(machine.this_cpu()) is not None


@pytest.mark.parametrize("is_set", [True, False])
def test_a_place_that_cannot_be_written_is_named_before_anything_is_measured(
    command, monkeypatch, tmp_path, is_set
):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.delenv(tables.FOLDER, raising=False)
    monkeypatch.setenv(tables.FOLDER if is_set else "XDG_CACHE_HOME", str(tmp_path / "file" / "x"))
    monkeypatch.setattr(cpu, "_Run", None)
    status, out, err = command("calibrate")
    assert status == 1 and not out and "Traceback" not in err
    assert f"cannot be kept in {tmp_path}/file/x" in err
    assert f"set the environment variable {tables.FOLDER} to a folder that can be written" in err


def test_as_json(command_json, monkeypatch):
    asked = []
    monkeypatch.setattr(calibration, "measured", lambda *given: asked.append(given) or "found")
    status, found = command_json("calibrate", "--seconds", "5", "--quiet")
    assert status == 0 and found.pop("seconds") >= 0
    assert found == {"device": "cpu", "report": "found"}
    assert [(device.type, *rest) for device, *rest in asked] == [("cpu", 5.0, False)]


@pytest.mark.parametrize(
    "error, said",
    [
        (KeyboardInterrupt(), "stopped; what was measured is kept"),
        (RuntimeError("no process can use the GPU"), "no process can use the GPU (`bppsa doctor`"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_what_stops_it(command, monkeypatch, error, said):
    def measured(*_):
        raise error

    monkeypatch.setattr(calibration, "measured", measured)
    status, out, err = command("calibrate")
    assert status == 1 and not out and said in err and "Traceback" not in err
