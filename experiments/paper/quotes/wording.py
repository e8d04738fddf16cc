"""How quoted numbers are written."""

from typing import Any

from experiments import recording


def ms(seconds: float) -> str:
    """Milliseconds in three digits: 0.42 ms, 18.9 ms, 1106 ms."""
    value = seconds * 1e3
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} ms"


def speed_up(ratio: float) -> str:
    """Stock's time over ours: 0.97x, 6.0x, 85x."""
    digits = 2 if ratio < 1 else 1 if ratio < 19.95 else 0
    return f"{ratio:.{digits}f}x"


def or_slower(ratio: float) -> str:
    """The same, in bold where stock is the faster one."""
    return f"**{speed_up(ratio)}**" if ratio < 1 else speed_up(ratio)


def source(records: str, name: str, record: dict[str, Any]) -> str:
    """A line that names machine, versions and date of a record, and links it."""
    e = record["environment"]
    versions = f"torch {e['torch']}"
    if "gpu" in e:
        versions += f", cuDNN {e['cudnn'] // 10000}.{e['cudnn'] // 100 % 100}"
    machine = recording.machine(e)
    return f"*{machine}; {versions}; {e['date']} ([record]({records}/{name}.json)).*"
