"""Training batches whose order is a function of a seed and the epoch, so that a run can be resumed.

Nothing is drawn from torch's global generator, neither here nor in worker processes: what a resumed
run reads does not depend on what was drawn before.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import DataLoader, Sampler

_ORDER, _AUGMENTATION = range(2)


def order(samples: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The samples' indices in the order of an epoch, (samples,): the same on every machine."""
    # NumPy keeps the raw output of this generator the same in every version, and of no shuffle.
    # With the index in the low bits no two numbers are equal, so every sort gives one order.
    low = np.uint64((1 << samples.bit_length()) - 1)
    drawn = _raw(seed, epoch, _ORDER, samples) & ~low
    return (np.sort(drawn | np.arange(samples, dtype=np.uint64)) & low).astype(np.int64)


def augmentation_draws(samples: int, kinds: int, seed: int, epoch: int) -> npt.NDArray[np.uint64]:
    """What augmentation draws in an epoch, (samples, kinds): a row for each sample."""
    return _raw(seed, epoch, _AUGMENTATION, samples * kinds).reshape(samples, kinds)


def _raw(seed: int, epoch: int, purpose: int, count: int) -> npt.NDArray[np.uint64]:
    sequence = np.random.SeedSequence(seed, spawn_key=(purpose, epoch))
    return np.random.PCG64(sequence).random_raw(count)


class EpochSampler(Sampler[int]):
    """All samples, in another order each epoch.

    Lightning divides the order among processes. Each iteration is one epoch further than the last,
    unless the epoch is set or known.

    Args:
        samples: how many there are.
        seed: of the order.
        current_epoch: returns the epoch that is trained, or None if none is. It goes before
            `set_epoch`: Lightning 2.6 sets one epoch too many in a run of ``max_steps`` that is
            resumed from the end of an epoch.
        numbered: whether samples are numbered through the epochs, ``epoch * samples + index``, for
            a dataset that augments. Copies of it in worker processes learn the epoch in this way.
    """

    def __init__(
        self,
        samples: int,
        seed: int,
        current_epoch: Callable[[], int | None] = lambda: None,
        numbered: bool = False,
    ) -> None:
        self.samples, self.seed, self.numbered = samples, seed, numbered
        self.current_epoch = current_epoch
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is that of this epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[int]:
        current = self.current_epoch()
        epoch = self.epoch if current is None else current
        self.epoch = epoch + 1
        indices = order(self.samples, self.seed, epoch)
        return iter((indices + epoch * self.samples if self.numbered else indices).tolist())


class ResumableLoader(DataLoader[Any]):
    """A ``DataLoader`` that starts in the middle of an epoch once its state has been loaded.

    Batches before that place are skipped by index: nobody reads them.

    Args:
        batches_done: returns how many batches of the epoch a resumed Trainer has trained on. That
            counts, and not what was fetched: a checkpoint that an exception leaves is written with
            a batch in hand. None goes by the batches fetched.
        args, kwargs: those of ``DataLoader``.
    """

    def __init__(
        self, *args: Any, batches_done: Callable[[], int] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        # Lightning builds the loader anew from attributes that are named as the arguments are.
        self.batches_done = batches_done
        self._rest = _RestOfEpoch(self.batch_sampler)  # type: ignore[arg-type]
        self._fetched = 0
        self._resumed_at: int | None = None

    def state_dict(self) -> dict[str, int]:
        """The number of batches fetched in this epoch."""
        return {"batches": self._fetched}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """The next iteration, and no later one, starts where the state was saved."""
        self._resumed_at = state_dict["batches"]

    def __iter__(self) -> Any:
        resumed_at, self._resumed_at = self._resumed_at, None
        return self._batches(resumed_at)

    def _batches(self, resumed_at: int | None) -> Iterator[Any]:
        # A generator, for it runs when the first batch is asked for. Lightning asks for an
        # iterator earlier, before it has restored its progress and set the epoch, and workers
        # would read ahead at once.
        self._rest.start = self._fetched = self._start(resumed_at)
        for batch in super().__iter__():
            self._fetched += 1
            yield batch

    def _start(self, resumed_at: int | None) -> int:
        if resumed_at is None:
            return 0
        return (self.batches_done() if self.batches_done else resumed_at) % max(1, len(self))

    @property
    def _index_sampler(self) -> "_RestOfEpoch":
        """Where ``DataLoader`` takes the indices of batches from, and its length."""
        return self._rest


class _RestOfEpoch:
    """Batches of indices, without the first `start`; its length is that of the whole epoch."""

    def __init__(self, batches: Iterable[list[int]]) -> None:
        self.batches = batches
        self.start = 0

    def __iter__(self) -> Iterator[list[int]]:
        return islice(iter(self.batches), self.start, None)

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]
