"""One device or several: what the Trainer's and Fabric's strategies for one device share."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from bppsa_lightning._trees import in_trees

if TYPE_CHECKING:
    _Base = Any
else:
    _Base = object


def _choice(name: str) -> Any:
    """A property of a strategy: what the Trainer chose, or else what the user gave.

    Lightning writes both to the same place, where the next Trainer would take the one for the
    other, and refuse a strategy that has served before.
    """

    def get(self: Any) -> Any:
        choices = self.__dict__.get("_choices", {})
        given = self.__dict__[f"_{name}"]
        self.__dict__[f"_{name}"] = choices.get(name, given)
        try:  # theirs makes the defaults, and completes a plugin that wraps another
            choices[name] = getattr(super(OneOrSeveral, self), name)
        finally:
            self.__dict__[f"_{name}"] = given
        return choices[name]

    def choose(self: Any, value: Any) -> None:
        if "_choices" in self.__dict__:
            self._choices[name] = value
        else:  # by the constructor
            self.__dict__[f"_{name}"] = value

    return property(get, choose)


class OneOrSeveral(_Base):
    """For a SingleDeviceStrategy that becomes a DDPStrategy when it is given several devices.

    Lightning makes a strategy of its name first and tells it the devices afterwards. Its own
    choice, "auto", is "ddp" on several devices, and so is this one's. One instance may serve
    several Trainers, one after another.

    Attributes:
        for_several: the class of the DDP strategy.
    """

    for_several: Any = None
    checkpoint_io = _choice("checkpoint_io")
    precision_plugin = _choice("precision_plugin")  # the Trainer's
    precision = _choice("precision")  # Fabric's

    def _init_choices(self, device: torch.device | str | int | None) -> None:
        self._device_given = device is not None
        self._choices: dict[str, Any] = {}
        self._devices: list[torch.device] = []
        self._num_nodes = 1
        self._layer_sync: Any = None
        self.cluster_environment: Any = None

    @property
    def accelerator(self) -> Any:
        return self._choices.get("accelerator", self._accelerator)

    @accelerator.setter
    def accelerator(self, accelerator: Any) -> None:
        self._choices = {"accelerator": accelerator}  # a new Trainer, and its choices alone

    @property
    def parallel_devices(self) -> list[torch.device] | None:
        """None, so that each Trainer that is given this instance chooses its own devices.

        The Trainer writes its choice here. SingleDeviceStrategy has no such place, and would stay
        on the CPU whatever the accelerator.
        """
        return None

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device]) -> None:
        self._devices = devices

    @property
    def num_nodes(self) -> int:
        return self._num_nodes

    @num_nodes.setter
    def num_nodes(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes

    @property
    def root_device(self) -> torch.device:
        if self._device_given or not self._devices:
            return self._root_device
        return self._devices[0]

    def _configure_launcher(self) -> None:
        # The last thing that is asked of a new strategy: it has been given all choices.
        if len(self._devices) > 1 or self._num_nodes > 1:
            self._become_ddp()
        else:
            self.cluster_environment = None  # of use for several only, and the next Trainer's own
            super()._configure_launcher()

    def _become_ddp(self) -> None:
        """The same instance, but a DDP strategy, with all that it was given."""
        if self._device_given or not _is_as_written(self):
            name, count = "devices", len(self._devices)
            if count < 2:
                name, count = "num_nodes", self._num_nodes
            kind = type(self).__name__
            what = f"{kind}(device=…)" if self._device_given else f"{kind}, a subclass"
            raise ValueError(
                f"{name}: found {count}, wanted 1 for {what} of a strategy for one device; pass "
                f"{name}=1, or use {self.for_several.__name__}, which trains on several"
            )
        precision = "precision_plugin" if "_precision_plugin" in self.__dict__ else "precision"
        chosen = {n: getattr(self, n) for n in ("accelerator", "checkpoint_io", precision)}
        given = self.__dict__.copy()
        self.__dict__.clear()
        self.__class__ = in_trees(self.for_several, type(self).__dict__["_trees"])
        # As Lightning's own choice: a notebook has no script to start again.
        interactive = hasattr(sys, "ps1") or bool(sys.flags.interactive)
        self.__init__(  # type: ignore[misc]
            given["algorithm"],
            parallel_devices=given["_devices"],
            cluster_environment=given["cluster_environment"],
            start_method="fork" if interactive else "popen",
            **chosen,
        )
        self._num_nodes = given["_num_nodes"]
        if hasattr(self, "_layer_sync"):
            self._layer_sync = given["_layer_sync"]
        for name in ("set_world_ranks", "_set_world_ranks"):  # the Trainer's, Fabric's
            if hasattr(self, name):
                getattr(self, name)()
        self._configure_launcher()


def _is_as_written(strategy: Any) -> bool:
    """Whether a strategy's class is this package's own, no subclass of a user's."""
    written = type(strategy).__dict__.get("_written", type(strategy))
    return bool(written.__module__.partition(".")[0] == __name__.partition(".")[0])
