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

#include "recurrent.cuh"

namespace bppsa::cuda {

// What a projected layer has beside a plain one's view of m and V.
template <typename T>
struct Projection {
  int P;
  const T *w_hh, *w_hr, *h0;  // (4 H, P), (P, H), (B, P) or null
};

constexpr int kEachThreads = 256;

/// to = onto (null: nothing) and all parts, `count` numbers each, added up; `to` may be `onto`.
template <typename T>
__global__ void __launch_bounds__(kEachThreads)
    add_parts_kernel(const T* parts, int64_t splits, int64_t count, const T* onto, T* to) {
  for (int64_t e = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; e < count;
       e += int64_t{gridDim.x} * blockDim.x) {
    T sum = onto ? onto[e] : T(0);
    for (int64_t split = 0; split < splits; ++split) sum += parts[split * count + e];
    to[e] = sum;
  }
}

template <typename T>
void add_parts(const T* parts, int64_t splits, int64_t count, const T* onto, T* to,
               Launcher& launch) {
  launch("add parts", add_parts_kernel<T>, ceil_div<int64_t>(count, kEachThreads), kEachThreads, 0,
         parts, splits, count, onto, to);
}

/// The gradients of all outputs, (T, B, P) side by side, that of h_n added to the last step's.
template <typename T>
__global__ void __launch_bounds__(kEachThreads)
    output_gradients_kernel(BackwardView<T> view, int P, T* to) {
  const int64_t count = view.T_ * view.B * P;
  for (int64_t e = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; e < count;
       e += int64_t{gridDim.x} * blockDim.x) {
    const int p = static_cast<int>(e % P);
    const int64_t b = e / P % view.B, t = e / P / view.B;
    T g = view.grad_output ? view.grad_output[t * view.grad_step + b * view.grad_sample + p] : T(0);
    if (view.grad_h_n && t == view.time(view.T_ - 1)) g += view.grad_h_n[b * P + p];
    to[e] = g;
  }
}

/// to (splits, M, N) = A B over K, in `splits` parts.
template <typename T, class A, class B>
void multiply_matrices(const A& a, const B& b, int64_t M, int64_t N, int64_t K, T* to,
                       Launcher& launch, int64_t splits = 1) {
  gemm<T>(a, b, Partials<T>{to, M, N}, M, N, K, splits, launch);
}

/// V (4 H, H).
template <typename T>
T* projected_matrix(const Projection<T>& projection, int H, Launcher& launch) {
  const int64_t rows = int64_t{4} * H;
  T* const matrix = launch.template allocate<T>(rows * H);
  multiply_matrices(RowsAlongK<T>{projection.w_hh, projection.P}, GateRows<T>{projection.w_hr, H},
                    rows, H, projection.P, matrix, launch);
  return matrix;
}

/// As recurrent_forward; of `view`, output and h_n have P numbers, and `m` (T, B, H) is filled too.
template <class Cell>
void projected_forward(ForwardView<typename Cell::scalar_t> view,
                       const Projection<typename Cell::scalar_t>& projection,
                       const Inputs<typename Cell::scalar_t>& x, int64_t I,
                       typename Cell::scalar_t* m, Launcher& launch) {
  using T = typename Cell::scalar_t;
  if (view.B == 0) return;
  const int64_t H = view.H, P = projection.P, rows = 4 * H;
  T *const output = view.output, *const h_n = view.h_n;
  view.w_hh = projected_matrix(projection, view.H, launch);
  view.h0 = nullptr;
  view.output = m;
  view.h_n = launch.template allocate<T>(view.B * H);
  if (projection.h0) {
    T* const first = launch.template allocate<T>(view.B * rows);
    multiply_matrices(RowsAlongK<T>{projection.h0, P}, RowsAlongK<T>{projection.w_hh, P}, view.B,
                      rows, P, first, launch);
    T* const inputs = projected_inputs<Cell>(view, x, I, launch);
    T* const start = inputs + (view.reverse ? view.T_ - 1 : 0) * view.B * rows;
    add_parts<T>(first, 1, view.B * rows, start, start, launch);
    walk_forward<Cell, false>(view, launch);
  } else {
    recurrent_forward<Cell>(view, x, I, launch);
  }
  const RowsAlongK<T> down{projection.w_hr, H};
  multiply_matrices(RowsAlongK<T>{m, H}, down, view.T_ * view.B, P, H, output, launch);
  multiply_matrices(RowsAlongK<T>{view.h_n, H}, down, view.B, P, H, h_n, launch);
}

/// As recurrent_backward; of `view`, grad_output, grad_h_n and grad_h0 have P numbers, and the
/// tape's output is m.
template <class Cell>
void projected_backward(BackwardView<typename Cell::scalar_t> view,
                        const Projection<typename Cell::scalar_t>& projection,
                        const std::string& algorithm, int64_t chunk, int64_t levels,
                        const Inputs<typename Cell::scalar_t>& x, int64_t I,
                        const typename Cell::scalar_t* w_ih, typename Cell::scalar_t* grad_x,
                        ParameterGradients<typename Cell::scalar_t> parameters,
                        typename Cell::scalar_t* grad_w_hr, Launcher& launch) {
  using T = typename Cell::scalar_t;
  const int64_t H = view.H, P = projection.P, rows = 4 * H, steps = view.T_ * view.B;
  T* const g = launch.template allocate<T>(steps * P);
  launch("output gradients", output_gradients_kernel<T>, ceil_div<int64_t>(steps * P, kEachThreads),
         kEachThreads, 0, view, projection.P, g);
  T* const grad_m = launch.template allocate<T>(steps * H);
  multiply_matrices(RowsAlongK<T>{g, P}, GateRows<T>{projection.w_hr, H}, steps, H, P, grad_m,
                    launch);
  T *const grad_h0 = view.grad_h0, *const grad_w_hh = parameters.w_hh;
  view.w_hh = projected_matrix(projection, view.H, launch);
  view.grad_output = grad_m, view.grad_step = view.B * H, view.grad_sample = H;
  view.grad_h_n = nullptr, view.grad_h0 = nullptr;
  const bool through = grad_w_hh || grad_w_hr;
  parameters.w_hh = through ? launch.template allocate<T>(rows * H) : nullptr;
  recurrent_backward<Cell>(view, algorithm, chunk, levels, x, I, w_ih, grad_x, parameters, launch);

  const T* const first = view.rows + (view.reverse ? view.T_ - 1 : 0) * view.B * rows;  // D_0
  if (grad_h0) {
    multiply_matrices(RowsAlongK<T>{first, rows}, GateRows<T>{projection.w_hh, P}, view.B, P, rows,
                      grad_h0, launch);
  }
  if (grad_w_hh) {
    const int64_t parts = projection.h0 ? 2 : 1;
    T* const sums = launch.template allocate<T>(parts * rows * P);
    multiply_matrices(RowsAlongK<T>{parameters.w_hh, H}, RowsAlongK<T>{projection.w_hr, H}, rows, P,
                      H, sums, launch);
    if (projection.h0) {
      multiply_matrices(GateRows<T>{first, rows}, GateRows<T>{projection.h0, P}, rows, P, view.B,
                        sums + rows * P, launch);
    }
    add_parts<T>(sums, parts, rows * P, nullptr, grad_w_hh, launch);
  }
  if (grad_w_hr) {
    const int64_t splits = gemm_splits(gemm_tiles(P, H), steps, 64, int64_t{8} * launch.processors);
    T* const sums = launch.template allocate<T>((splits + 1) * P * H);
    multiply_matrices(GateRows<T>{projection.w_hh, P}, GateRows<T>{parameters.w_hh, H}, P, H, rows,
                      sums, launch);
    multiply_matrices(GateRows<T>{g, P}, GateRows<T>{view.tape.output, H}, P, H, steps,
                      sums + P * H, launch, splits);
    add_parts<T>(sums, splits + 1, P * H, nullptr, grad_w_hr, launch);
  }
}

}  // namespace bppsa::cuda
