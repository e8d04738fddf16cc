"""IRMAS's stand-in without a network: excerpts rendered from a soundfont, read like IRMAS's own."""

import os
from collections.abc import Iterable
from typing import Any

from torch.utils.data import Dataset

from .checks import check_folder
from .irmas import IRMASDataModule
from .irmas_layout import INSTRUMENTS, Excerpt
from .rendering.corpus import check_corpus, render_corpus
from .rendering.recording import draw
from .splits import Batch


class RenderedIRMASDataModule(IRMASDataModule):
    """`IRMASDataModule` on a corpus that ``prepare_data`` renders where it is missing.

    Each split has its share not only of each instrument's recordings but of each of its programs.

    The corpus is sampled instruments that play random phrases, not recordings of musicians: what is
    learned on it says little of real music.

    Args:
        data_dir: folder of the corpus.
        per_class: rendered files of each instrument, 0.5 MB each; three make up a recording.
        corpus_seed: of the music. (``seed`` is that of the splits.)
        soundfont: path of a General MIDI soundfont (.sf2); None for the one that is installed.
        synthesiser: ``"midirenderer"`` or ``"fluidsynth"``.
        kwargs: those of `IRMASDataModule`; ``prepare_workers`` also limits the processes that
            render.

    Raises:
        TypeError, ValueError: an argument has the wrong type or is out of range, or ``download`` is
            asked for: there is nothing to download.
        FileExistsError, ImportError, FileNotFoundError: in ``prepare_data``, as `render_corpus`.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] = "data/irmas_rendered",
        per_class: int = 75,
        corpus_seed: int = 0,
        soundfont: str | None = None,
        synthesiser: str = "midirenderer",
        **kwargs: Any,
    ) -> None:
        check_corpus(per_class, corpus_seed, synthesiser)
        # Plain values, under these names, for save_hyperparameters, which reads them here too.
        data_dir = check_folder("data_dir", data_dir)
        if kwargs.get("cache_dir") is not None:
            kwargs["cache_dir"] = check_folder("cache_dir", kwargs["cache_dir"])
        soundfont = None if soundfont is None else check_folder("soundfont", soundfont)
        super().__init__(data_dir, **kwargs)
        if self.download:
            raise ValueError(
                "download is True, but this corpus is rendered; IRMASDataModule downloads IRMAS"
            )

    def _strata(self, excerpts: list[Excerpt]) -> list[int]:
        """Programs of instruments: each split has its share of each."""
        seed = self.hparams["corpus_seed"]
        played = [
            (excerpt.label, draw(seed, INSTRUMENTS[excerpt.label], int(excerpt.recording)).sound)
            for excerpt in excerpts
        ]
        numbers = {sound: number for number, sound in enumerate(dict.fromkeys(played))}
        return [numbers[sound] for sound in played]

    def _load(self, names: Iterable[str]) -> dict[str, Dataset[Batch]]:
        """Also renders the corpus where it is missing; raises what `render_corpus` does."""
        render_corpus(
            self.data_dir,
            self.hparams["per_class"],
            self.hparams["corpus_seed"],
            self.hparams["soundfont"],
            self.hparams["synthesiser"],
            self.hparams["prepare_workers"],
        )
        return super()._load(names)
