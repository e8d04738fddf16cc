"""Whether this process is the command line, which says why the package does not load.

`python -m bppsa_lightning` imports the package before anything else, and so does the script
`bppsa`. Where that fails, `doctor` is wanted most. So the package loads nothing there, until one of
its names is asked for. Only the standard library is imported here.
"""

import importlib
import os
import re
import sys

_PACKAGE = __name__.partition(".")[0]
_SCRIPT = "bppsa"  # pyproject.toml
_MODULE = re.compile(rf"(-\w*m)?{_PACKAGE}(\.__main__)?")


def _is_command() -> bool:
    if not sys.argv:
        return False
    program = sys.argv[0]
    if program == "-m":  # while Python looks for the module
        return bool(_MODULE.fullmatch(sys.orig_argv[-len(sys.argv)]))
    return os.path.basename(program).removesuffix(".exe") == _SCRIPT


# Whether nothing is loaded yet.
waiting = _is_command()


def load() -> None:
    """Imports what `import bppsa_lightning` does elsewhere; raises what it raises.

    Asked again, it does nothing; but after an error it tries again.
    """
    global waiting
    if not waiting:
        return
    waiting = False
    try:
        importlib.reload(sys.modules[_PACKAGE])
    except BaseException:
        waiting = True
        raise
