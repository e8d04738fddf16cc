"""Libraries that only some datamodules need, imported when they are."""

import importlib
from typing import Any


def import_extra(module: str, use: str) -> Any:
    """Imports a module.

    Args:
        module: its dotted name.
        use: who uses the library for what, for the error.

    Raises:
        ImportError: if it is not installed; the message says what to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0].replace("sklearn", "scikit-learn")
        raise ImportError(f"{use}; pip install {library}") from error
