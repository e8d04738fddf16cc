"""What is wrong with the file of a compiled library, read from its header."""

from __future__ import annotations

import platform
import struct
from pathlib import Path

_HEADER = struct.Struct("<HHIQQQIHHHHHH")  # after the 16 bytes of identification, of 64 bits
_MACHINES = {62: ("x86_64", "amd64"), 183: ("aarch64", "arm64")}


def damage(path: Path) -> str | None:
    """Why a file is no library for this machine, for people; None if its header says that it is."""
    try:
        with open(path, "rb") as file:
            start = file.read(16 + _HEADER.size)
        size = path.stat().st_size
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    if not size:
        return "it is empty"
    if start[:4] != b"\x7fELF" or len(start) < 16 + _HEADER.size or start[4] != 2:
        return "it is no library of Linux with 64 bits"
    _, machine, _, _, _, sections, _, _, _, _, each, count, _ = _HEADER.unpack(start[16:])
    names = _MACHINES.get(machine, (f"machine {machine}",))
    if platform.machine().lower() not in names:
        return f"it is for {names[0]}, and this machine is {platform.machine()}"
    if (wanted := sections + each * count) > size:  # the table of sections is last
        return f"it is cut off: it has {size:,} of {wanted:,} bytes"
    return None
