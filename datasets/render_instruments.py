"""Renders an IRMAS-like corpus of the eleven instruments from a General MIDI soundfont.

    python -m bppsa_lightning.datasets.render_instruments --out data/irmas_rendered

Three excerpts of 3 s make up a recording: one player, program, tempo, key, tuning, room and
microphone, different music. About half of the recordings are accompanied. Needs the extra `audio`
(pretty_midi, midirenderer), or Debian's fluidsynth and timgm6mb-soundfont with
`--synthesiser fluidsynth` (and pretty_midi, which writes the scores, in either case).
"""

import argparse
import sys
from collections.abc import Sequence

from .rendering.corpus import render_corpus
from .rendering.synthesis import SYNTHESISERS


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 after a message that says what was wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m bppsa_lightning.datasets.render_instruments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", default="data/irmas_rendered", help="folder of the corpus (default: %(default)s)")
    add("--per-class", type=int, default=75, metavar="N",
        help="files of each instrument, 0.5 MB each (default: %(default)s)")  # fmt: skip
    add("--seed", type=int, default=0, help="of all music (default: %(default)s)")
    add("--soundfont", metavar="PATH", help="General MIDI soundfont, .sf2 (default: installed one)")
    add("--synthesiser", default="midirenderer", choices=sorted(SYNTHESISERS),
        help="(default: %(default)s)")  # fmt: skip
    add("--jobs", type=int, metavar="N", help="processes (default: one a core)")
    add("--overwrite", action="store_true", help="replace a rendered corpus of other settings")
    add("--quiet", action="store_true", help="no progress bar")
    options = parser.parse_args(arguments)
    try:
        rendered = render_corpus(
            options.out,
            options.per_class,
            options.seed,
            options.soundfont,
            options.synthesiser,
            options.jobs,
            checksums=True,
            overwrite=options.overwrite,
            progress=not options.quiet,
        )
    except (ImportError, OSError, TypeError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    print(f"{options.out}: {'rendered' if rendered else 'was there already, whole'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
