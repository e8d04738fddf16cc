"""`python -m bppsa_lightning`: the command line."""

import sys

from bppsa_lightning.cli import main

if __name__ == "__main__":
    sys.exit(main())
