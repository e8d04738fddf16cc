#pragma once
// A layer's forward and backward: which input side, which scan, and what comes before and after it.

#include "carry.cuh"
#include "forward.cuh"
#include "gradients.cuh"
#include "recompute.cuh"
#include "written.cuh"

namespace bppsa::cuda {

/// The input's part of all steps, (T, B, kGates * H), as the input side of `view`.
template <class Cell>
typename Cell::scalar_t* project_inputs(ForwardView<typename Cell::scalar_t>& view,
                                        const Inputs<typename Cell::scalar_t>& x, int64_t I,
                                        Launcher& launch) {
  using Real = typename Cell::scalar_t;
  const int64_t rows = int64_t{Cell::kGates} * view.H;
  Real* const projected = launch.template allocate<Real>(view.T * view.B * rows);
  gemm<Real>(InputsAlongK<Real>{x}, RowsAlongK<Real>{view.w_ih, I}, RowMajor<Real>{projected, rows},
             view.T * view.B, rows, I, 1, launch);
  view.input = projected;
  view.input_step = view.B * rows;
  view.input_sample = rows;
  return projected;
}

template <class Cell>
void plain_forward(const ForwardLayer<typename Cell::scalar_t>& layer, Launcher& launch) {
  ForwardView<typename Cell::scalar_t> view = layer.view;
  if (layer.I == 1 && takes_scalars<Cell>(view.H, launch)) {
    view.input = layer.x.data;
    view.input_step = layer.x.step;
    view.input_sample = layer.x.sample;
    return walk_forward<Cell, true>(view, launch);
  }
  project_inputs<Cell>(view, layer.x, layer.I, launch);
  walk_forward<Cell, false>(view, launch);
}

/// The scan: gate gradients and gradients of the initial state.
template <class Cell>
void scan_recurrent(const BackwardView<typename Cell::scalar_t>& view, const Plan& plan,
                    Launcher& launch) {
  using Real = typename Cell::scalar_t;
  if (plan.algorithm == Algorithm::blelloch && plan.levels > 0 && view.T > 1) {
    return scan_written<Cell>(view, plan.levels, launch);
  }
  const int N = Cell::kStates * view.H;
  const int64_t chunk = plan.chunk;
  // Of larger states the products never pay: such a chunked scan is a linear one.
  const bool chunked = plan.algorithm == Algorithm::chunked && chunk >= 2 && chunk < view.T &&
                       view.H <= kMostComposedH;
  if (!chunked) return replay_recurrent<Cell>(view, view.T, 1, {nullptr, view.B, N}, launch);
  const int64_t chunks = ceil_div(view.T, chunk);
  const int64_t product = (chunks - 1) * view.B * N * (N + 1);
  Real* const scratch = launch.template allocate<Real>(product + (chunks - 1) * view.B * N);
  const Products<Real> products{scratch, chunks - 1, view.B, N};
  const Carries<Real> carries{scratch + product, view.B, N};
  compose_recurrent<Cell>(view, chunk, chunks, products, carries, launch);
  if (chunks > 2) carry_recurrent<Cell>(view, chunk, chunks, products, carries, launch);
  replay_recurrent<Cell>(view, chunk, chunks, carries, launch);
}

/// The scan, the gates before it where the forward kept none, and all that follows it.
template <class Cell>
void plain_backward(const BackwardLayer<typename Cell::scalar_t>& layer, Launcher& launch) {
  using Real = typename Cell::scalar_t;
  BackwardView<Real> view = layer.view;
  const int64_t places = view.T * view.B * view.H;
  if constexpr (Cell::kKeeps) {
    if (!view.tape.gates && view.B > 0) {
      // Where each sample is walked by one block, its gradients take the place of its gates.
      static_assert(Cell::kRows == 4);
      const bool apart = layer.plan.algorithm == Algorithm::blelloch;
      Real* const gates = apart ? launch.template allocate<Real>(places * 4) : view.rows;
      view.tape.gates = reinterpret_cast<Quad<Real>*>(gates);
      recompute_gates<Cell>(layer, reinterpret_cast<Quad<Real>*>(gates), launch);
    }
  }
  if (view.B > 0) scan_recurrent<Cell>(view, layer.plan, launch);
  const int I = static_cast<int>(layer.I);
  if (layer.parameters) {
    parameter_gradients<Cell>(view, layer.x, I, layer.parameters, launch);
  }
  if (layer.grad_x && view.B > 0) {
    input_gradient<Cell>(view, layer.w_ih, I, layer.grad_x, launch);
  }
}

}  // namespace bppsa::cuda
