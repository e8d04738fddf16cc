"""Training batches whose order is a function of a seed and the epoch, and that keep their place.

A run that is resumed from a checkpoint, also from one written in the middle of an epoch, gets the
batches that it would have got. Lightning saves and restores the state of a loader that has one.

N samples of the split, B batch.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class EpochSampler(DistributedSampler[Any]):
    """The samples of an epoch in an order of its own, each process its share of them.

    A DistributedSampler, so that Lightning takes it as it is on several devices. There the seed is
    that of ``seed_everything``, as for Lightning's own; an epoch has as many samples in each
    process, some of them twice if need be.

    Args:
        dataset: of N samples.
        seed: of the order; None draws one from torch's global generator at the first epoch.

    Attributes:
        epoch: the present one. `epoch_now` holds it too, as a tensor that worker processes share.
    """

    def __init__(self, dataset: Dataset[Any], seed: int | None) -> None:
        together = dist.is_available() and dist.is_initialized()
        super().__init__(
            dataset,
            num_replicas=dist.get_world_size() if together else 1,
            rank=dist.get_rank() if together else 0,
        )
        if self.num_replicas > 1 and seed is None:
            seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
        self.given_seed, self.order_seed = seed, seed
        self.start = 0  # samples of the epoch that come next are left out
        self.epoch_now = torch.zeros((), dtype=torch.int64).share_memory_()
        self._is_set = True  # the epoch, since the last one began

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch comes next; without it each is the one after the last."""
        self.epoch, self._is_set = epoch, True
        self.epoch_now.fill_(epoch)

    def begin(self) -> None:
        """An epoch begins."""
        if not self._is_set:
            self.set_epoch(self.epoch + 1)
        self._is_set = False

    def __iter__(self) -> Iterator[int]:
        order = self._order()
        if self.num_replicas > 1:
            order += order[: self.total_size - len(order)]
            order = order[self.rank : self.total_size : self.num_replicas]
        start, self.start = self.start, 0
        return iter(order[start:])

    def _order(self) -> list[int]:
        samples = len(self.dataset)  # type: ignore[arg-type]
        if self.order_seed is None:
            self.order_seed = int(torch.empty((), dtype=torch.int64).random_().item())
        # Seeds may be as large as 2**64 - 1, where a sum must wrap around.
        generator = torch.Generator().manual_seed((self.order_seed + self.epoch) % 2**64)
        if self.given_seed is not None and self.num_replicas == 1:
            torch.empty((), dtype=torch.int64).random_(generator=generator)  # as a DataLoader does
        return torch.randperm(samples, generator=generator).tolist()


class ResumableLoader(DataLoader[Any]):
    """A DataLoader over an `EpochSampler` that Lightning saves and restores with a training.

    Args:
        dataset: of N samples.
        batch_size: B.
        sampler: of the order.
        trained: the number of this epoch's batches that were trained on; None where nobody knows,
            and those that were handed out count.
        options: the DataLoader's own.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        sampler: EpochSampler,
        trained: Callable[[], int | None] = lambda: None,
        **options: Any,
    ) -> None:
        super().__init__(dataset, batch_size, sampler=sampler, **options)
        self._trained = trained
        self._handed_out = 0
        self._resumed: tuple[int, int] | None = None  # epoch, batches

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return self._epoch()

    def _epoch(self) -> Iterator[Any]:
        # A generator: nothing is drawn before the first batch is asked for, by when the Trainer has
        # said which epoch it is.
        sampler = self.sampler
        assert isinstance(sampler, EpochSampler)
        sampler.begin()
        resumed, self._resumed = self._resumed, None
        skipped = resumed[1] if resumed is not None and resumed[0] == sampler.epoch else 0
        assert self.batch_size is not None
        sampler.start = skipped * self.batch_size
        self._handed_out = skipped
        for batch in super().__iter__():
            self._handed_out += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Where the training is: its epoch, the batches of it that are done, and the order."""
        trained, sampler = self._trained(), self.sampler
        assert isinstance(sampler, EpochSampler)
        return {
            "epoch": sampler.epoch,
            "batches": self._handed_out if trained is None else min(trained, self._handed_out),
            "seed": sampler.order_seed,
            **self._fixed(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where a training was.

        Raises:
            ValueError: the loader is another one, so that its batches would be others; names what
                differs.
        """
        for name, value in self._fixed().items():
            if state[name] != value:
                raise ValueError(
                    f"{name}: found {value}, but the checkpoint was written with {state[name]}; "
                    "its place in the epoch means nothing with other batches"
                )
        sampler = self.sampler
        assert isinstance(sampler, EpochSampler)
        sampler.order_seed = state["seed"]
        self._resumed = state["epoch"], state["batches"]

    def _fixed(self) -> dict[str, Any]:
        sampler = self.sampler
        assert isinstance(sampler, EpochSampler)
        samples = len(self.dataset)  # type: ignore[arg-type]
        return {
            "batch_size": self.batch_size,
            "num_samples": samples,
            "num_processes": sampler.num_replicas,
        }


def batch_generator(seed: int, epoch: Tensor, indices: list[int]) -> torch.Generator:
    """Random numbers for a batch, the same whichever process makes it, and whenever.

    Args:
        seed: of all of them.
        epoch: () int64.
        indices: of the batch; those of one epoch have no sample in common.
    """
    generator = torch.Generator().manual_seed(seed)
    words = torch.empty(3, dtype=torch.int64).random_(generator=generator)
    mixed = int(words[0]) ^ (int(words[1]) * (int(epoch) + 1)) ^ (int(words[2]) * (indices[0] + 1))
    return generator.manual_seed(mixed % 2**64)
