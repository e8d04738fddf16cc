"""Checkpoints that are whole or not there, whenever the run is interrupted.

Lightning's own writer moves a temporary file from the system's folder for such files; where that
is another file system, the move is a copy, and a kill leaves half of it.
"""

import contextlib
import os
import uuid
from typing import Any

from lightning.fabric.plugins import TorchCheckpointIO
from typing_extensions import override


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the final name, then renames. Local paths only."""

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        path = os.fspath(path)
        beside = f"{path}.{uuid.uuid4().hex}.tmp"
        try:
            super().save_checkpoint(checkpoint, beside, storage_options)
            os.replace(beside, path)
        except BaseException:
            with contextlib.suppress(OSError):  # the first one is what is wrong
                os.remove(beside)
            raise
