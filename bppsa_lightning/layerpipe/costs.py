from dataclasses import dataclass
@dataclass(frozen=True)
class LayerCost:
    name: str
    forward: float
    input_gradient: float
    weight_gradient: float
    output_size: float
    weight_size: float
    input_size: float
