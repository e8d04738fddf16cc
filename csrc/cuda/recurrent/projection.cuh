#pragma once
// An LSTM with a projection: its state h = W_hr m has P numbers, m = o tanh(c) has H of them.
//
// As W_hh h = (W_hh W_hr) m, it is a plain LSTM of state m under the recurrent matrix V = W_hh
// W_hr, and every kernel of that, forwards and backwards, serves it. Around them are products over
// all steps at once. Only h0 is no projection of an m: W_hh h0 comes to the input's part of the
// first step. With D the gate gradients, D_0 those of the first step, and g the gradients of the
// outputs, that of h_n added to the last:
//
//   h = m W_hrᵀ        grad m = g W_hr        grad h0 = D_0 W_hh
//   grad W_hh = grad V W_hrᵀ + D_0ᵀ h0        grad W_hr = W_hhᵀ grad V + gᵀ m

#include "../threads.cuh"
#include "plain.cuh"

namespace bppsa::cuda {

/// to = onto (null: nothing) and all parts, `count` numbers each, added up; `to` may be `onto`.
template <typename Real>
__global__ void __launch_bounds__(kThreadsOfEach)
    add_parts_kernel(const Real* parts, int64_t splits, int64_t count, const Real* onto, Real* to) {
  for_each_thread(count, [&](int64_t e) {
    Real sum = onto ? onto[e] : Real(0);
    for (int64_t split = 0; split < splits; ++split) sum += parts[split * count + e];
    to[e] = sum;
  });
}

template <typename Real>
void add_parts(const Real* parts, int64_t splits, int64_t count, const Real* onto, Real* to,
               Launcher& launch) {
  launch_each("add parts", add_parts_kernel<Real>, count, launch, parts, splits, count, onto, to);
}

/// The gradients of all outputs, (T, B, P) side by side, that of h_n added to the last step's.
template <typename Real>
__global__ void __launch_bounds__(kThreadsOfEach)
    output_gradients_kernel(BackwardView<Real> view, int P, Real* to) {
  const int64_t count = view.T * view.B * P;
  for_each_thread(count, [&](int64_t e) {
    const int p = static_cast<int>(e % P);
    const int64_t b = e / P % view.B, t = e / P / view.B;
    Real g = view.grad_output ? view.grad_output[t * view.grad_step + b * view.grad_sample + p]
                              : Real(0);
    if (view.grad_h_n && t == view.time(view.T - 1)) g += view.grad_h_n[b * P + p];
    to[e] = g;
  });
}

/// to (splits, M, N) = A B over K, in `splits` parts.
template <typename Real, class A, class B>
void multiply_matrices(const A& a, const B& b, int64_t M, int64_t N, int64_t K, Real* to,
                       Launcher& launch, int64_t splits = 1) {
  gemm<Real>(a, b, Partials<Real>{to, M, N}, M, N, K, splits, launch);
}

/// V (4 H, H).
template <typename Real>
Real* projected_matrix(const Projection<Real>& projection, int H, Launcher& launch) {
  const int64_t rows = int64_t{4} * H;
  Real* const matrix = launch.template allocate<Real>(rows * H);
  multiply_matrices(RowsAlongK<Real>{projection.w_hh, projection.P},
                    GateRows<Real>{projection.w_hr, H}, rows, H, projection.P, matrix, launch);
  return matrix;
}

template <class Cell>
void projected_forward(ForwardLayer<typename Cell::scalar_t> layer, Launcher& launch) {
  using Real = typename Cell::scalar_t;
  ForwardView<Real>& view = layer.view;
  const Projection<Real>& projection = layer.projection;
  const int64_t H = view.H, P = projection.P, rows = 4 * H, steps = view.T * view.B;
  Real *const output = view.output, *const h_n = view.h_n;
  Real* const m = layer.m ? layer.m : launch.template allocate<Real>(steps * H);
  view.w_hh = projected_matrix(projection, view.H, launch);
  view.h0 = nullptr;
  view.output = m;
  view.h_n = launch.template allocate<Real>(view.B * H);
  if (projection.h0) {
    Real* const first = launch.template allocate<Real>(view.B * rows);
    multiply_matrices(RowsAlongK<Real>{projection.h0, P}, RowsAlongK<Real>{projection.w_hh, P},
                      view.B, rows, P, first, launch);
    Real* const inputs = project_inputs<Cell>(view, layer.x, layer.I, launch);
    Real* const start = inputs + (view.reverse ? view.T - 1 : 0) * view.B * rows;
    add_parts<Real>(first, 1, view.B * rows, start, start, launch);
    walk_forward<Cell, false>(view, launch);
  } else {
    plain_forward<Cell>(layer, launch);
  }
  const RowsAlongK<Real> down{projection.w_hr, H};
  multiply_matrices(RowsAlongK<Real>{m, H}, down, steps, P, H, output, launch);
  multiply_matrices(RowsAlongK<Real>{view.h_n, H}, down, view.B, P, H, h_n, launch);
}

template <class Cell>
void projected_backward(BackwardLayer<typename Cell::scalar_t> layer, Launcher& launch) {
  using Real = typename Cell::scalar_t;
  BackwardView<Real>& view = layer.view;
  const Projection<Real>& projection = layer.projection;
  ParameterGradients<Real>& parameters = layer.parameters;
  Real* const grad_w_hr = layer.grad_w_hr;
  const int64_t H = view.H, P = projection.P, rows = 4 * H, steps = view.T * view.B;
  Real* const g = launch.template allocate<Real>(steps * P);
  launch_each("output gradients", output_gradients_kernel<Real>, steps * P, launch, view,
              projection.P, g);
  Real* const grad_m = launch.template allocate<Real>(steps * H);
  multiply_matrices(RowsAlongK<Real>{g, P}, GateRows<Real>{projection.w_hr, H}, steps, H, P, grad_m,
                    launch);
  Real *const grad_h0 = view.grad_h0, *const grad_w_hh = parameters.w_hh;
  view.w_hh = projected_matrix(projection, view.H, launch);
  view.grad_output = grad_m, view.grad_step = view.B * H, view.grad_sample = H;
  view.grad_h_n = nullptr, view.grad_h0 = nullptr;
  const bool through = grad_w_hh || grad_w_hr;
  parameters.w_hh = through ? launch.template allocate<Real>(rows * H) : nullptr;
  plain_backward<Cell>(layer, launch);

  const Real* const first = view.rows + (view.reverse ? view.T - 1 : 0) * view.B * rows;  // D_0
  if (grad_h0) {
    multiply_matrices(RowsAlongK<Real>{first, rows}, GateRows<Real>{projection.w_hh, P}, view.B, P,
                      rows, grad_h0, launch);
  }
  if (grad_w_hh) {
    const int64_t parts = projection.h0 ? 2 : 1;
    Real* const sums = launch.template allocate<Real>(parts * rows * P);
    multiply_matrices(RowsAlongK<Real>{parameters.w_hh, H}, RowsAlongK<Real>{projection.w_hr, H},
                      rows, P, H, sums, launch);
    if (projection.h0) {
      multiply_matrices(GateRows<Real>{first, rows}, GateRows<Real>{projection.h0, P}, rows, P,
                        view.B, sums + rows * P, launch);
    }
    add_parts<Real>(sums, parts, rows * P, nullptr, grad_w_hh, launch);
  }
  if (grad_w_hr) {
    const int64_t splits = gemm_splits(gemm_tiles(P, H), steps, 64, int64_t{8} * launch.processors);
    Real* const sums = launch.template allocate<Real>((splits + 1) * P * H);
    multiply_matrices(GateRows<Real>{projection.w_hh, P}, GateRows<Real>{parameters.w_hh, H}, P, H,
                      rows, sums, launch);
    multiply_matrices(GateRows<Real>{g, P}, GateRows<Real>{view.tape.output, H}, P, H, steps,
                      sums + P * H, launch, splits);
    add_parts<Real>(sums, splits + 1, P * H, nullptr, grad_w_hr, launch);
  }
}

}  // namespace bppsa::cuda
