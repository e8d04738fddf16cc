"""A recurrent layer in JAX: jax.jit of lax.scan's value and gradient."""

from typing import Any

import torch

from experiments.benchmarks import timing
from experiments.benchmarks.recurrent_cases import Case


def step_of(case: Case, unroll: int = 1) -> dict[str, timing.Step]:
    """{"jax": one step on the CPU from a gradient of every output}; {} without JAX.

    Args:
        case: float32, one layer without options.
        unroll: steps of time in one turn of the compiled loop, of `jax.lax.scan`.
    """
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        return {}

    device, cell = torch.device("cpu"), case.cell
    layer, x = case.layer(device), case.input(device)
    assert isinstance(x, torch.Tensor)

    def one(weights: Any, state: Any, x_t: Any) -> Any:
        w_ih, w_hh, b_ih, b_hh = weights
        h = state[0]
        a, b = x_t @ w_ih.T + b_ih, h @ w_hh.T + b_hh
        if cell == "RNN":
            return (jnp.tanh(a + b),)
        if cell == "GRU":
            (ar, az, an), (br, bz, bn) = jnp.split(a, 3, -1), jnp.split(b, 3, -1)
            r, z = jax.nn.sigmoid(ar + br), jax.nn.sigmoid(az + bz)
            n = jnp.tanh(an + r * bn)
            return (n + z * (h - n),)
        i, f, g, o = jnp.split(a + b, 4, -1)
        c = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c)

    def loss(weights: Any, xs: Any, u: Any) -> Any:
        zero = jnp.zeros((xs.shape[1], layer.hidden_size))
        first = (zero, zero) if cell == "LSTM" else (zero,)

        def scanned(state: Any, x_t: Any) -> Any:
            state = one(weights, state, x_t)
            return state, state[0]

        _, outputs = jax.lax.scan(scanned, first, xs, unroll=unroll)
        return (outputs * u).sum(), outputs

    weights = [jnp.asarray(w.detach().numpy()) for w in layer.parameters()]
    xs = jnp.asarray(x.numpy())
    u = jnp.asarray(torch.randn(case.T, case.B, case.H).numpy())
    gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))

    def step() -> timing.Seconds:
        return timing.timed(device, both=lambda: jax.block_until_ready(gradient(weights, xs, u)))

    step()
    return {"jax": step}
