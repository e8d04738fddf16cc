"""A corpus of excerpts in IRMAS's layout, rendered in parallel, whole or not at all."""

import contextlib
import os
import shutil
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..checks import check_choice, check_folder, check_int
from ..locks import locked
from . import manifest
from .excerpt import render_excerpt
from .instruments import INSTRUMENTS
from .manifest import Settings
from .recording import draw
from .synthesis import RATE, SYNTHESISERS, describe_synthesiser, find_soundfont, need_synthesiser

EXCERPTS = 3  # of one recording, as in IRMAS
_MOST = 9999 // len(INSTRUMENTS) * EXCERPTS  # numbers have four digits
_FILES_A_PROCESS = 30  # rendered in the time that a process takes to start
_STALE_SECONDS = 24 * 60 * 60


def render_corpus(
    out: str | os.PathLike[str] = "data/irmas_rendered",
    per_class: int = 75,
    seed: int = 0,
    soundfont: str | os.PathLike[str] | None = None,
    synthesiser: str = "midirenderer",
    jobs: int | None = None,
    checksums: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> bool:
    """Renders `<out>/<instrument>/<name>.wav`: 44.1 kHz, stereo, 16 bits, 3 s; and manifest.json.

    A folder that holds the wanted corpus is left as it is, and nothing need be installed then.
    Else everything is rendered into a folder beside it, which then takes the name `out`. The same
    settings give the same bytes, with the same versions of the packages, on machines of one kind.
    A smaller `per_class` gives a part of a larger one's files.

    Args:
        out: folder of the corpus.
        per_class: files of each of the eleven instruments, up to 2727; three make up a recording.
        seed: of all music, from 0.
        soundfont: path of a General MIDI soundfont (.sf2); None for the one that is installed.
        synthesiser: "midirenderer" or "fluidsynth".
        jobs: the most processes; None for one a core.
        checksums: whether to verify the content of a corpus that is there, and not only its sizes.
        overwrite: whether a rendered corpus of other settings in `out` is replaced.
        progress: whether to draw a progress bar.

    Returns:
        Whether anything was rendered.

    Raises:
        TypeError, ValueError: an argument has the wrong type or is out of range, or a program of
            the soundfont is silent.
        FileNotFoundError: there is no soundfont. ImportError: no synthesiser. Both say what to
            install.
        FileExistsError: `out` holds something else, or another corpus and not `overwrite`.
    """
    folder = Path(check_folder("out", out))
    check_corpus(per_class, seed, synthesiser)
    jobs = check_int("jobs", os.cpu_count() if jobs is None else jobs, 1)
    font = None if soundfont is None else find_soundfont(os.fspath(soundfont))
    wanted = Settings(per_class, seed, synthesiser, None if font is None else manifest.sha256(font))
    if _is_there(folder, wanted, checksums, overwrite):
        return False

    need_synthesiser(synthesiser)
    font = find_soundfont() if font is None else font
    settings = Settings(per_class, seed, synthesiser, manifest.sha256(font))
    facts = {"soundfont_name": font.name, "synthesiser_version": describe_synthesiser(synthesiser)}
    with locked(folder):
        if _is_there(folder, wanted, checksums, overwrite):  # another process made it meanwhile
            return False
        with _written_aside(folder) as beside:
            files = _render_all(beside, settings, font, jobs, progress)
            manifest.write(beside, settings, facts, files)
    return True


def check_corpus(per_class: int, seed: int, synthesiser: str) -> None:
    """Raises TypeError or ValueError for settings that no corpus can have."""
    check_int("per_class", per_class, 1, _MOST)
    check_int("seed", seed, 0)
    check_choice("synthesiser", synthesiser, tuple(SYNTHESISERS))


def _is_there(folder: Path, wanted: Settings, checksums: bool, overwrite: bool) -> bool:
    """Whether `folder` holds the corpus; raises if it holds what must not be replaced."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    found = manifest.read(folder)
    if found is None:
        raise FileExistsError(
            f"out is {str(folder)!r}, which is there and holds no rendered corpus; "
            "pass another folder, or remove it"
        )
    differences = wanted.differences(found)
    if differences and not overwrite:
        raise FileExistsError(
            f"out is {str(folder)!r}, which holds a corpus of other settings "
            f"({'; '.join(differences)}); pass another folder, or overwrite"
        )
    damaged = manifest.first_damaged(folder, found["files"], checksums)
    if damaged and not differences:
        warnings.warn(
            f"{folder / damaged} is missing or damaged; the corpus is rendered again", stacklevel=3
        )
    return not differences and not damaged


def _render_all(
    folder: Path, settings: Settings, font: Path, jobs: int, progress: bool
) -> dict[str, Any]:
    import joblib
    from tqdm import tqdm

    tasks = list(_recordings(settings.per_class))
    total = settings.per_class * len(INSTRUMENTS)
    processes = max(1, min(jobs, total // _FILES_A_PROCESS))
    files: dict[str, Any] = {}
    # Processes of loky start afresh: no locks of the caller's are copied, nor is its script run.
    with (
        joblib.parallel_config("loky", inner_max_num_threads=1, idle_worker_timeout=10),
        tqdm(total=total, desc="rendering", unit="file", disable=None if progress else True) as bar,
    ):
        render = joblib.delayed(_render_recording)
        for entries in joblib.Parallel(processes, return_as="generator_unordered")(
            render(folder, settings.seed, *task, font, settings.synthesiser) for task in tasks
        ):
            files |= entries
            bar.update(len(entries))
    return files


def _recordings(per_class: int) -> Iterator[tuple[str, int, int]]:
    """Instrument, number and excerpts of each recording. A number belongs to one instrument."""
    for first in range(0, per_class, EXCERPTS):
        for index, instrument in enumerate(INSTRUMENTS):
            number = first // EXCERPTS * len(INSTRUMENTS) + index + 1
            yield instrument, number, min(EXCERPTS, per_class - first)


def _render_recording(
    folder: Path,
    seed: int,
    instrument: str,
    number: int,
    excerpts: int,
    font: Path,
    synthesiser: str,
) -> dict[str, Any]:
    """Writes a recording's excerpts; returns their entries in the manifest."""
    import soundfile

    recording = draw(seed, instrument, number)
    (folder / instrument).mkdir(exist_ok=True)
    entries = {}
    for excerpt in range(1, excerpts + 1):
        samples = render_excerpt(recording, excerpt, font, synthesiser)
        path = folder / instrument / recording.file_name(excerpt)
        # As bytes: soundfile encodes no names that are not UTF-8.
        soundfile.write(os.fsencode(path), samples, RATE, subtype="PCM_16")
        entries[f"{instrument}/{path.name}"] = manifest.entry(path)
    return entries


@contextlib.contextmanager
def _written_aside(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` that takes its name, and its place, when the block ends well."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(folder)
    beside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.tmp")
    beside.mkdir()
    try:
        yield beside
        _replace(beside, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _replace(new: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.tmp")
    with contextlib.suppress(FileNotFoundError):
        os.replace(folder, old)
    os.replace(new, folder)
    shutil.rmtree(old, ignore_errors=True)


def _remove_stale(folder: Path) -> None:
    """Removes what killed processes left behind, once no process can still be writing it."""
    for left in folder.parent.glob(f".{folder.name}.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(left)
