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

#include "plain.cuh"

namespace bppsa::cuda {

/// The gradients of all outputs, (T, B, P) side by side, that of h_n added to the last step's.
template <typename Real>
__global__ void __launch_bounds__(kThreadsOfBlock)
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

/// The request for the layer of m, which lies at `m`, (T, B, H).
template <class Cell, class Request, typename Number>
Request unprojected(const Request& request, Number* m, Launcher& launch) {
  using Real = typename Cell::scalar_t;
  const int64_t H = request.H, rows = Cell::kGates * H;
  Real* const matrix = launch.template allocate<Real>(rows * H);
  gemm<true>(along_rows(in<Real>(request.w_hh), request.P),
             along_columns(in<Real>(request.w_hr), H), rows, H, request.P, matrix, launch);
  Request plain = request;
  plain.P = H;
  plain.w_hh = matrix, plain.w_hr = nullptr, plain.h0 = nullptr;
  plain.output_stride[0] = runs_backwards(request) ? -request.B * H : request.B * H;
  plain.output = m + (runs_backwards(request) ? (request.T - 1) * request.B * H : 0);
  if (plain.kept_width > 0) plain.kept_width -= H;  // m, behind the rest
  return plain;
}

template <class Cell, typename Real = typename Cell::scalar_t>
void projected_forward(const RecurrentForwardRequest& request, Real* h_n, Launcher& launch) {
  const int64_t B = request.B, H = request.H, P = request.P, rows = Cell::kGates * H;
  const int64_t steps = request.T * B;
  Real* m = Kept<Cell, Real>(request, out<Real>(request.kept)).m;
  if (!m) m = launch.template allocate<Real>(steps * H);
  Real* const last_m = launch.template allocate<Real>(B * H);
  Real* first = nullptr;
  if (request.h0) {
    first = launch.template allocate<Real>(B * rows);
    gemm<true>(along_rows(in<Real>(request.h0), P), along_rows(in<Real>(request.w_hh), P), B, rows,
               P, first, launch);
  }
  plain_forward<Cell>(unprojected<Cell>(request, m, launch), last_m, launch, first);
  const auto down = along_rows(in<Real>(request.w_hr), H);
  Real* const output = first_in_time(out<Real>(request.output), request.output_stride[0], request);
  gemm<true>(along_rows<Real>(m, H), down, steps, P, H, output, launch);
  gemm<true>(along_rows<Real>(last_m, H), down, B, P, H, h_n, launch);
}

template <class Cell, typename Real = typename Cell::scalar_t>
void projected_backward(const RecurrentBackwardRequest& request, const Plan& plan, Real* rows_of_d,
                        Launcher& launch) {
  const int64_t T = request.T, B = request.B, H = request.H, P = request.P;
  const int64_t rows = Cell::kGates * H, steps = T * B;
  const Real *const w_hh = in<Real>(request.w_hh), *const w_hr = in<Real>(request.w_hr);
  const Real *const h0 = in<Real>(request.h0),
                    *const m = Kept<Cell, const Real>(request, in<Real>(request.kept)).m;
  const bool backwards = runs_backwards(request);
  Real* const g = launch.template allocate<Real>(steps * P);
  launch_threads(launch, "output gradients", output_gradients_kernel<Real>, steps * P,
                 backward_view<Cell>(request, rows_of_d), static_cast<int>(P), g);
  Real* const grad_m = launch.template allocate<Real>(steps * H);
  gemm<true>(along_rows<Real>(g, P), along_columns(w_hr, H), steps, H, P, grad_m, launch);
  const bool through = request.grad_w_hh || request.grad_w_hr;
  Real* const grad_v = through ? launch.template allocate<Real>(rows * H) : nullptr;

  RecurrentBackwardRequest plain = unprojected<Cell>(request, m, launch);
  plain.grad = grad_m + (backwards ? (T - 1) * B * H : 0);
  plain.grad_stride[0] = plain.output_stride[0], plain.grad_stride[1] = H;
  plain.grad_hn = nullptr, plain.grad_h0 = nullptr, plain.grad_w_hh = grad_v;
  plain_backward<Cell>(plain, plan, rows_of_d, launch);

  const Real* const first = rows_of_d + (backwards ? T - 1 : 0) * B * rows;  // D_0
  if (request.grad_h0) {
    gemm<true>(along_rows(first, rows), along_columns(w_hh, P), B, P, rows,
               out<Real>(request.grad_h0), launch);
  }
  if (request.grad_w_hh) {
    const int64_t parts = h0 ? 2 : 1;
    Real* const sums = launch.template allocate<Real>(parts * rows * P);
    gemm<true>(along_rows<Real>(grad_v, H), along_rows(w_hr, H), rows, P, H, sums, launch);
    if (h0) {
      gemm<true>(along_columns(first, rows), along_columns(h0, P), rows, P, B, sums + rows * P,
                 launch);
    }
    add_parts<Real>(sums, parts, rows * P, nullptr, out<Real>(request.grad_w_hh), launch);
  }
  if (request.grad_w_hr) {
    const int64_t splits = gemm_splits(P, H, steps, launch);
    Real* const sums = launch.template allocate<Real>((splits + 1) * P * H);
    gemm<true>(along_columns(w_hh, P), along_columns<Real>(grad_v, H), P, H, rows, sums, launch);
    gemm<true>(along_columns<Real>(g, P), along_columns(m, H), P, H, steps, sums + P * H, launch,
               splits);
    add_parts<Real>(sums, splits + 1, P * H, nullptr, out<Real>(request.grad_w_hr), launch);
  }
}

}  // namespace bppsa::cuda
