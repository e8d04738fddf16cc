"""Libraries that only some datamodules need, imported when they are."""

import importlib
from typing import Any


def import_extra(module: str, use: str) -> Any:
    """Imports a module.

    Args:
        module: its dotted name.
        use: who uses the library for what, for the error.

    Raises:
        ImportError: if it is not installed, with what to install; or if it is, but broken.
    """
    library = module.partition(".")[0]
    try:
        importlib.import_module(library)
        return importlib.import_module(module)
    except (ImportError, OSError) as error:  # OSError: a shared library that it loads is missing
        if isinstance(error, ModuleNotFoundError) and error.name == library:
            package = library.replace("sklearn", "scikit-learn")
            raise ImportError(f"{use}; pip install {package}") from error
        raise ImportError(f"{use}; {library} is installed, but does not import: {error}") from error
