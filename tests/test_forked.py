"""Processes of tests: `support.forked`."""

from support import forked

# Ends before a process that it has started, as the first rank of a training may.
SCRIPT = """
import subprocess, sys
wait = "import sys, time; time.sleep(1); open(sys.argv[1] + '/done', 'w')"
subprocess.Popen([sys.executable, "-c", wait, sys.argv[1]])
"""


def test_a_run_is_over_when_all_its_processes_are(tmp_path):
    script = tmp_path / "starts.py"
    script.write_text(SCRIPT)
    forked.run(tmp_path, script, tmp_path, timeout=60)
    assert (tmp_path / "done").exists()
