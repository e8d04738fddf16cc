#pragma once
// The recurrent chains' forward and backward, for arguments that have been checked: which cell,
// which input side, which scan.

#include <string>

#include "again.cuh"
#include "carry.cuh"
#include "forward.cuh"
#include "gradients.cuh"
#include "tree.cuh"

namespace bppsa::cuda {

/// Calls run(Cell{}) for the cell's name; false if there is none.
template <typename T, class Run>
bool with_cell(const std::string& name, Run run) {
  if (name == "rnn_tanh") return run(RnnCell<T, Phi::tanh>{}), true;
  if (name == "rnn_relu") return run(RnnCell<T, Phi::relu>{}), true;
  if (name == "gru") return run(GruCell<T>{}), true;
  if (name == "lstm") return run(LstmCell<T>{}), true;
  return false;
}

/// The input's part of all steps, (T, B, kGates * H), as the input side of `view`.
template <class Cell>
typename Cell::scalar_t* projected_inputs(ForwardView<typename Cell::scalar_t>& view,
                                          const Inputs<typename Cell::scalar_t>& x, int64_t I,
                                          Launcher& launch) {
  using T = typename Cell::scalar_t;
  const int64_t rows = int64_t{Cell::kGates} * view.H;
  T* const projected = launch.template allocate<T>(view.T_ * view.B * rows);
  project_inputs(x, view.w_ih, view.T_, I, rows, projected, launch);
  view.input = projected;
  view.input_step = view.B * rows;
  view.input_sample = rows;
  return projected;
}

/// Fills what `view` points to; its input side is filled in here.
template <class Cell>
void recurrent_forward(ForwardView<typename Cell::scalar_t> view,
                       const Inputs<typename Cell::scalar_t>& x, int64_t I, Launcher& launch) {
  if (view.B == 0) return;
  if (I == 1 && takes_scalars<Cell>(view.H, launch)) {
    view.input = x.data;
    view.input_step = x.step;
    view.input_sample = x.sample;
    return walk_forward<Cell, true>(view, launch);
  }
  projected_inputs<Cell>(view, x, I, launch);
  walk_forward<Cell, false>(view, launch);
}

/// The scan: gate gradients and gradients of the initial state.
template <class Cell>
void scan_recurrent(const BackwardView<typename Cell::scalar_t>& view, const std::string& algorithm,
                    int64_t chunk, int64_t levels, Launcher& launch) {
  using T = typename Cell::scalar_t;
  if (algorithm == "blelloch" && levels > 0 && view.T_ > 1) {
    return scan_tree<Cell>(view, levels, launch);
  }
  const int N = Cell::kStates * view.H;
  // Of larger states the products never pay: such a chunked scan is a linear one.
  const bool chunked =
      algorithm == "chunked" && chunk >= 2 && chunk < view.T_ && view.H <= kMostComposedH;
  if (!chunked) return replay_recurrent<Cell>(view, view.T_, 1, {nullptr, view.B, N}, launch);
  const int64_t chunks = ceil_div(view.T_, chunk);
  const int64_t product = (chunks - 1) * view.B * N * (N + 1);
  T* const scratch = launch.template allocate<T>(product + (chunks - 1) * view.B * N);
  const StateProducts<T> products{scratch, view.B, N};
  const StateCarries<T> carries{scratch + product, view.B, N};
  compose_recurrent<Cell>(view, chunk, chunks, products, carries, launch);
  if (chunks > 2) carry_recurrent<Cell>(view, chunk, chunks, products, carries, launch);
  replay_recurrent<Cell>(view, chunk, chunks, carries, launch);
}

/// The scan and all that follows it; null gradients are not wanted.
template <class Cell>
void recurrent_backward(const BackwardView<typename Cell::scalar_t>& view,
                        const std::string& algorithm, int64_t chunk, int64_t levels,
                        const Inputs<typename Cell::scalar_t>& x, int64_t I,
                        const typename Cell::scalar_t* w_ih, typename Cell::scalar_t* grad_x,
                        const ParameterGradients<typename Cell::scalar_t>& parameters,
                        Launcher& launch) {
  if (view.B > 0) scan_recurrent<Cell>(view, algorithm, chunk, levels, launch);
  if (parameters) parameter_gradients<Cell>(view, x, static_cast<int>(I), parameters, launch);
  if (grad_x && view.B > 0) {
    input_gradient<Cell>(view, w_ih, static_cast<int>(I), grad_x, launch);
  }
}

}  // namespace bppsa::cuda
