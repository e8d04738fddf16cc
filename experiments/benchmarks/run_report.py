"""The report of a short training, as `bl.RunReport` writes it, for the page about it.

    python -m experiments.benchmarks.run_report --record

The training is the paper's bitstream task, in 1,000 steps. The record is the report's own data; the
picture is the page that is made of it, as a headless Chromium shows it.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from bppsa_lightning import report
from experiments import recording

NAME = "run_report"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZE = 1100, 1500  # of the window, in its pixels


def trained(steps: int, data: Path) -> dict[str, Any]:
    """The data of a training's report."""
    import lightning.pytorch as pl

    import bppsa_lightning as bl
    from bppsa_lightning.datasets import BitstreamDataModule
    from experiments.train.bitstream_rnn import BitstreamRNN

    pl.seed_everything(0)
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            strategy="bppsa", accelerator="cpu", max_steps=steps, gradient_clip_val=1.0,
            val_check_interval=steps // 4, limit_val_batches=20, default_root_dir=folder,
            logger=False, enable_checkpointing=False, enable_progress_bar=False,
            # As much time for stock's steps as for the rest: this training is over in seconds.
            callbacks=[bl.RunReport(folder, stock_share=1.0)],
        )  # fmt: skip
        trainer.fit(BitstreamRNN(lr=1e-4), BitstreamDataModule(data))
        return dict(report.read(Path(folder) / "bppsa_report.json"))


def draw(found: dict[str, Any], path: Path) -> None:
    """The upper part of the page, as .png.

    Raises:
        FileNotFoundError: there is no browser to draw it.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise FileNotFoundError(f"no browser here: wanted one of {', '.join(BROWSERS)} on PATH")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page, picture = Path(folder) / "page.html", Path(folder) / "page.png"
        page.write_text(report.page(found["report"]))
        subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={folder}/profile", "--blink-settings=preferredColorScheme=1",
             f"--window-size={SIZE[0]},{SIZE[1]}", f"--screenshot={picture}", page.as_uri()],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        path.write_bytes(picture.read_bytes())


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    recording.add_record_argument(parser)
    parser.add_argument("--steps", type=int, default=1000, help="of the training (1000)")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the bit streams")
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    folder = recording.folder(asked.record)
    found = {"report": trained(asked.steps, asked.data)}
    recording.write(folder / f"{NAME}.json", found)
    draw(found, folder / f"{NAME}.png")
    print(json.dumps(found["report"]["time"]["speed_ups"]))


if __name__ == "__main__":
    main()
