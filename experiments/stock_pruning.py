"""Lightning's own ModelPruning, with the one argument that YAML cannot give it."""

from typing import Any

from lightning.pytorch.callbacks import ModelPruning


class StockPruning(ModelPruning):
    """ModelPruning that prunes at the end of given epochs, without the lottery ticket.

    Args:
        at_epochs: these epochs.
        settings: of ModelPruning.
    """

    def __init__(
        self,
        pruning_fn: str,
        amount: float,
        at_epochs: list[int],
        parameter_names: list[str] | None = None,
        use_global_unstructured: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(
            pruning_fn,
            amount=amount,
            parameter_names=parameter_names,
            use_global_unstructured=use_global_unstructured,
            apply_pruning=frozenset(at_epochs).__contains__,
            use_lottery_ticket_hypothesis=False,
            **settings,
        )
