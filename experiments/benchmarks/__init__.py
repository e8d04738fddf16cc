"""Measurements against stock PyTorch, JAX, SciPy and the planner's estimates."""
