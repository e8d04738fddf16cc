"""LayerPipe: layers over processes, weight and activation gradients as tasks of their own."""
