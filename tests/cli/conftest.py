"""What tests of the command line share."""

import json

import pytest

from bppsa_lightning.cli import main


@pytest.fixture
def command(capfd):
    """Runs a command in this process: its exit code, stdout and stderr."""

    def run(*arguments):
        capfd.readouterr()
        try:
            status = main(list(map(str, arguments)))
        except SystemExit as exit:  # argparse
            status = exit.code
        said = capfd.readouterr()
        return status, said.out, said.err

    return run


@pytest.fixture
def command_json(command):
    """The same with `--json`: exit code, and the one object on stdout."""

    def run(*arguments):
        status, out, _ = command(*arguments, "--json")
        return status, json.loads(out)

    return run
