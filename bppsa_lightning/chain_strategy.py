"""``Trainer(strategy="bppsa_chain", devices=P)``: recurrent layers divided over P processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from typing_extensions import override

from bppsa_lightning._same_batches import (
    generators,
    is_same_sample,
    sample_of,
    set_generators,
)
from bppsa_lightning._trees import stand_in
from bppsa_lightning._whole_metrics import WholeMetrics
from bppsa_lightning.attach import divide
from bppsa_lightning.strategy import AttachesChains

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import DDPStrategy
else:
    DDPStrategy = stand_in("pytorch.strategies.DDPStrategy")


# Numbers of a batch that the processes of a chain compare; what `sample_of` has beyond is left out.
_COMPARED = 1 << 10


class BPPSAChainStrategy(AttachesChains, DDPStrategy):
    """Trains with every recurrent layer's time divided over the processes of a chain.

    ``Trainer(strategy="bppsa_chain", devices=P)``. All processes of a chain get the same batches
    and run the same model; of a recurrent layer over a long enough sequence each walks a span of
    time, and holds what its backward needs of that span alone. Outputs are gathered, and parameter
    gradients summed, so that all else is computed as by one process, in every one of them. What
    draws random numbers draws the same in all of them.

    With fewer ranks in a chain than processes, D = processes / chain chains train on D parts of the
    data, as "ddp" would on D processes: gradients are averaged over chains by
    DistributedDataParallel. Whatever else is put together from several processes (``sync_dist``,
    ``all_gather``, metrics) is put together from those of different chains alone.

    Args:
        algorithm: as for `BPPSAStrategy`: "auto"; "linear" passes states and gradients from rank
            to rank, "blelloch" composes spans and scans over ranks, "speculative" lets all ranks
            begin at once, and verifies.
        chain: processes in a chain, neighbours in rank; by default all.
        kwargs: DDPStrategy's (start_method, process_group_backend, timeout, …) and, for several
            chains, DistributedDataParallel's.

    Attributes:
        chains, scans, explanation: as of `BPPSAStrategy`, each process its own.
        mesh: of the processes, ("data", "chain"), from the start of the processes on.

    Raises:
        TypeError, ValueError: `algorithm` is unknown, or `chain` no divisor of the processes.
        RuntimeError: in a step, the processes of a chain have read different batches.
    """

    strategy_name = "bppsa_chain"

    def __init__(
        self,
        algorithm: str | Mapping[str, str] = "auto",
        chain: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if chain is not None and (not isinstance(chain, int) or chain < 1):
            raise ValueError(f"chain: found {chain!r}, wanted a number of processes, or None")
        self._init_attach(algorithm)
        self.chain = chain
        self.mesh: DeviceMesh | None = None
        self._metrics: WholeMetrics | None = None

    @override
    def setup_environment(self) -> None:
        super().setup_environment()
        world = dist.get_world_size()
        size = world if self.chain is None else self.chain
        if world % size:
            raise ValueError(f"chain: found {size}, wanted a divisor of the {world} processes")
        ranks = torch.arange(world).view(-1, size)
        # Groups of our own, as those that a mesh makes do not have the timeout.
        groups = [self._group_of(ranks.T.tolist()), self._group_of(ranks.tolist())]
        self.mesh = DeviceMesh.from_group(
            groups, self.root_device.type, ranks, mesh_dim_names=("data", "chain")
        )

    def _group_of(self, ranks: list[list[int]]) -> dist.ProcessGroup:
        """That of this process, of several that are made by all."""
        own: Any = dist.group.WORLD
        if len(ranks) > 1:
            own, _ = dist.new_subgroups_by_enumeration(ranks, timeout=self._timeout)
        found: dist.ProcessGroup = own
        return found

    @property
    def group(self) -> dist.ProcessGroup:
        """The processes of this one's chain."""
        assert self.mesh is not None
        return self.mesh.get_group("chain")

    @property
    @override
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        assert self.mesh is not None
        return {"num_replicas": self.mesh.size(0), "rank": self.mesh.get_local_rank("data")}

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        assert self.mesh is not None
        if self.mesh.size(0) == 1:
            # Every process reads all of the data, in the order that the user gave it.
            trainer._accelerator_connector.use_distributed_sampler = False
        super().setup(trainer)
        set_generators(self._of_first(generators()))
        assert self.lightning_module is not None
        self._metrics = WholeMetrics(self.lightning_module, self._others(None))

    @override
    def configure_ddp(self) -> None:
        module = self.lightning_module
        assert module is not None and self.mesh is not None
        self._share(module)
        # Here, not in `setup`: batch norms have been replaced by synchronised ones by now.
        self._attach()
        if self.mesh.size(0) > 1:
            self._ddp_kwargs["process_group"] = self.mesh.get_group("data")
            super().configure_ddp()

    @override
    def _divide(self) -> None:
        divide(self.chains, self.group, alike=True)

    # A step

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self._check_alike((args, kwargs))
        return super().training_step(*args, **kwargs)

    @override
    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        self._check_alike((args, kwargs))
        return super().validation_step(*args, **kwargs)

    @override
    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        self._check_alike((args, kwargs))
        return super().test_step(*args, **kwargs)

    @override
    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        self._check_alike((args, kwargs))
        return super().predict_step(*args, **kwargs)

    def _check_alike(self, batch: Any) -> None:
        """Raises, in every process of the chain, if they have not read the same batch.

        Of unlike samples each process would walk its span of its own.
        """
        sample = sample_of(batch)
        # (On the sample's device, whatever torch's default is.)
        length, padding = sample.new_tensor([len(sample)]), sample.new_zeros(_COMPARED)
        own = torch.cat([length, sample, padding])[:_COMPARED]
        own = own.to(self.root_device)
        all_samples = [torch.empty_like(own) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(all_samples, own, self.group)
        first, *others = torch.stack(all_samples).cpu()
        if not all(is_same_sample(other, first) for other in others):
            raise RuntimeError(
                "the processes of a chain have read different batches; wanted the same ones. A "
                "DistributedSampler, or data that are divided by ranks, take their numbers from "
                "trainer.strategy.distributed_sampler_kwargs; what is drawn before fit, as by "
                "random_split, needs seed_everything first"
            )

    # Results

    @override
    def teardown(self) -> None:
        chains = list(self.chains)
        if self._metrics is not None:
            self._metrics.restore()
            self._metrics = None
        super().teardown()
        divide(chains, None)

    @override
    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """As the base method, over the chains."""
        group = self._others(group)
        return tensor if group is None else super().reduce(tensor, group, reduce_op)

    @override
    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """As the base method, over the chains; of one, the tensor, as on a single device."""
        group = self._others(group)
        return tensor if group is None else super().all_gather(tensor, group, sync_grads)

    @override
    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """As the base method, over all processes: those of a chain must not part."""
        votes = torch.tensor(int(decision), device=self.root_device)
        votes = super().reduce(votes, dist.group.WORLD, "sum")
        return bool(votes == self.world_size) if all else bool(votes)

    def _others(self, group: Any) -> dist.ProcessGroup | None:
        """The processes that a value is put together from; None for this one alone.

        By default one of each chain, as a chain has read the same data in all of its processes.

        Args:
            group: that the user wants; None, or all (Lightning's own default), for the default.
        """
        if group is not None and group is not dist.group.WORLD:
            asked: dist.ProcessGroup = group
            return asked
        if self.mesh is None or self.mesh.size(0) == 1:
            return None
        return self.mesh.get_group("data")

    def _of_first(self, found: Any) -> Any:
        """What the first process of the chain has."""
        parts = [found]
        dist.broadcast_object_list(parts, dist.get_global_rank(self.group, 0), self.group)
        return parts[0]

    def _share(self, module: pl.LightningModule) -> None:
        """Gives every process of the chain the weights and buffers of its first."""
        first = dist.get_global_rank(self.group, 0)
        for tensor in [*module.parameters(), *module.buffers()]:
            sent = tensor.data.contiguous()
            dist.broadcast(sent, first, self.group)
            if sent.data_ptr() != tensor.data_ptr():
                tensor.data.copy_(sent)
