"""Trains models of public packages with their default and with "bppsa", in turns; writes tables.

    python -m tests.third_party.run [PACKAGE ...] [--pairs 3] [--record]

Each package gets an environment of its own under build/third_party, made when it is missing: a
virtual environment that sees this one's torch and Lightning, with the versions of requirements/.
Each training is a process of its own, one thread. A model that fails does not stop the others.
Writes third_party.json, of models with recurrent layers, and third_party_loops.json, of models with
loops of their own, whichever the packages belong to (with --record into experiments/records, and
their tables in docs/third_party.md).
"""

import argparse
import json
import os
import re
import site
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENTS = ROOT / "build" / "third_party"
SECONDS = 600  # of a training, at most
LAYERS = {
    "neuralforecast": ("GRU", "LSTM", "RNN", "DeepAR"),
    "darts": [f"{m} {c}" for m in ("RNNModel", "BlockRNNModel") for c in ("GRU", "LSTM", "RNN")],
    "pytorch_forecasting": [
        f"{m} {c}" for m in ("DeepAR", "RecurrentNetwork") for c in ("GRU", "LSTM")
    ],
    "torchrl": ("LSTMModule", "GRUModule"),
    "speechbrain": ("GRU", "LSTM", "RNN"),
    "gluonts": ("DeepAR",),
}
LOOPS = {
    "pypots": (
        *(f"GRU-D, {sizes}" for sizes in ("4096 steps, batch 4", "1024 steps, batch 32")),
        *(f"{name}, 1024 steps, batch 4" for name in ("GRU-D", "BRITS")),
        *(f"{name}, 48 steps, batch 32" for name in ("GRU-D", "BRITS")),
    ),
    "ncps": (
        *(f"{name}, 1024 steps, batch 4" for name in ("CfC", "LTC")),
        *(f"{name}, 48 steps, batch 32" for name in ("CfC", "LTC")),
    ),
}
MODELS = LAYERS | LOOPS
TOLERANCE = 1e-5  # of the largest loss


def python_of(package: str) -> Path:
    """The interpreter of a package's environment, which is made if it is not there."""
    folder, done = ENVIRONMENTS / package, ENVIRONMENTS / package / ".installed"
    python = folder / "bin" / "python"
    if not done.exists():
        venv.create(folder, with_pip=True, clear=True)
        [packages] = folder.glob("lib/python*/site-packages")
        # As a site folder: the hook of an editable install in there has to run, too.
        lines = (f"import site; site.addsitedir({path!r})" for path in site.getsitepackages())
        (packages / "base.pth").write_text("\n".join(lines) + "\n")
        requirements = HERE / "requirements" / f"{package}.txt"
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            + ["-c", ROOT / "constraints.txt", "-r", requirements],
            check=True,
        )
        done.touch()
    return python


def training(package: str, model: str, strategy: str) -> dict:
    """One training: losses, seconds, versions, what was accelerated."""
    run = subprocess.run(
        [python_of(package), "-m", "tests.third_party.fitting", package, model, strategy],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    if run.returncode:
        raise RuntimeError(f"{package} {model} {strategy}: {run.stderr[-3000:]}")
    return json.loads(run.stdout.strip().splitlines()[-1])


def compare(package: str, model: str, pairs: int) -> dict:
    """A row of the table: the two trainings in turns."""
    runs = [
        [training(package, model, strategy) for strategy in ("default", "bppsa")]
        for _ in range(pairs)
    ]
    stock, ours = runs[0]
    scale = max(map(abs, stock["losses"]))
    seconds = [median(pair[i]["seconds"] for pair in runs) for i in (0, 1)]
    differences = (abs(a - b) for a, b in zip(stock["losses"], ours["losses"], strict=True))
    return {
        "package": package.replace("_", "-"),
        "version": ours["versions"][package.replace("_", "-")],
        "model": model,
        "steps": len(ours["losses"]),
        "difference": max(differences) / scale,
        "default_seconds": seconds[0],
        "bppsa_seconds": seconds[1],
        "speed_up": median(pair[0]["seconds"] / pair[1]["seconds"] for pair in runs),
        "accelerated": ours["explanation"].partition("\n")[0],
        "scans": re.findall(r"^scan of .*?batch \d+: (.*)$", ours["explanation"], re.MULTILINE),
    }


def table(rows: list[dict], ours: str = "bppsa") -> str:
    """Markdown."""
    lines = [
        f"| package | model | training steps | losses differ by | default | {ours} | speed-up |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        head = f"| {row['package']} {row.get('version', '')} | {row['model']} |"
        if "error" in row:
            lines.append(f"{head} | {row['error'].splitlines()[-1]} | | | |")
            continue
        lines.append(
            f"{head} {row['steps']} | {row['difference']:.0e} | {row['default_seconds']:.2f} s | "
            f"{row['bppsa_seconds']:.2f} s | {row['speed_up']:.1f}x |"
        )
    return "\n".join(lines)


def main() -> None:
    from experiments import recording

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("packages", nargs="*", default=[], help=f"of {', '.join(MODELS)}")
    parser.add_argument("--pairs", type=int, default=3, help="trainings of each kind (default: 3)")
    recording.add_record_argument(parser)
    arguments = parser.parse_args()
    unknown = set(arguments.packages) - set(MODELS)
    if unknown:
        parser.error(f"packages: found {sorted(unknown)}, wanted some of {', '.join(MODELS)}")
    packages = arguments.packages or MODELS
    failed = False
    for name, kind in (("third_party", LAYERS), ("third_party_loops", LOOPS)):
        asked = [package for package in packages if package in kind]
        if not asked:
            continue
        rows = rows_of(asked, arguments.pairs)
        failed = failed or any("error" in row for row in rows)
        record = {"pairs": arguments.pairs, "rows": rows}
        path = recording.folder(arguments.record) / f"{name}.json"
        recording.write(path, record)
        print(f"record: {path}")
        if arguments.record:
            write_page(ROOT / "docs" / "third_party.md", name, record | recording.environment())
    sys.exit(failed)


def rows_of(packages: Iterable[str], pairs: int) -> list[dict]:
    """One for each model, printed as it is made."""
    rows: list[dict] = []
    for package in packages:
        for model in MODELS[package]:
            try:
                rows.append(compare(package, model, pairs))
            except (RuntimeError, subprocess.SubprocessError) as error:
                rows.append({"package": package, "model": model, "error": str(error)})
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    return rows


def write_page(path: Path, name: str, record: dict) -> None:
    """The table between the page's marks for it."""
    text = path.read_text()
    start, end = f"<!-- table: {name} -->", "<!-- end of table -->"
    before, _, rest = text.partition(start)
    after = rest.partition(end)[2]
    pairs = record["pairs"]
    taken = "one pair" if pairs == 1 else f"medians of {pairs} pairs"
    where = (
        f"{record['cpu']}, one thread, {taken}, torch "
        f"{record['torch']}, lightning {record['lightning']}, {record['date']}."
    )
    shown = table(record["rows"], "bl.scan" if name == "third_party_loops" else "bppsa")
    path.write_text(f"{before}{start}\n{where}\n\n{shown}\n{end}{after}")


if __name__ == "__main__":
    main()
