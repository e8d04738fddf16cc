"""Lightning's own ModelPruning, with the one argument that YAML cannot give it."""

from typing import Any

from lightning.pytorch.callbacks import ModelPruning


class StockPruning(ModelPruning):
    """ModelPruning that prunes at the end of given epochs, without the lottery ticket.

    Args:
        at_epochs: these epochs.
        module_names: of which classes.
        settings: of ModelPruning.
    """

    def __init__(
        self,
        pruning_fn: str,
        amount: float,
        at_epochs: list[int],
        parameter_names: list[str] | None = None,
        module_names: list[str] | None = None,
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
        self.module_names = module_names

    def filter_parameters_to_prune(self, parameters_to_prune: Any = ()) -> Any:
        """As SparseJacobianPruning's."""
        names = self.module_names
        return [p for p in parameters_to_prune if names is None or type(p[0]).__name__ in names]
