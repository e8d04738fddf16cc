#pragma once
// A layer's forward and backward without a projection: which input side, and what comes before and
// after the scan.

#include <utility>

#include "forward.cuh"
#include "gradients.cuh"
#include "recompute.cuh"
#include "scan.cuh"

namespace bppsa::cuda {

/// to = onto (null: nothing) and all parts, `count` numbers each, added up; `to` may be `onto`.
template <typename Real>
__global__ void __launch_bounds__(kThreadsOfBlock)
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
  launch_threads(launch, "add parts", add_parts_kernel<Real>, count, parts, splits, count, onto,
                 to);
}

/// to (T, B, count), contiguous, = x, of rows of `count` numbers.
template <typename Real>
__global__ void __launch_bounds__(kThreadsOfBlock)
    copy_inputs_kernel(Inputs<Real> x, int64_t rows, int64_t count, Real* to) {
  for_each_thread(rows * count, [&](int64_t e) { to[e] = x(e / count, e % count); });
}

/// The input's part of all steps, (T, B, kGates * H), as the input side of `view`; `first` (null:
/// nothing), of one step, is added to that of the chain's first one.
template <class Cell, typename Real = typename Cell::scalar_t>
void multiply_inputs(const Inputs<Real>& x, int64_t I, const Real* first, ForwardView<Real>& view,
                     Launcher& launch) {
  const int64_t rows = int64_t{Cell::kGates} * view.H;
  if (!view.w_ih && !first) {
    view.input = x.data, view.input_step = x.step, view.input_sample = x.sample;
    return;
  }
  Real* const products = launch.template allocate<Real>(view.T * view.B * rows);
  if (view.w_ih)
    gemm(AlongRows<Inputs<Real>>{x}, along_rows(view.w_ih, I), view.T * view.B, rows, I, products,
         launch);
  else
    launch_threads(launch, "copy inputs", copy_inputs_kernel<Real>, view.T * view.B * rows, x,
                   view.T * view.B, rows, products);
  view.input = products;
  view.input_step = view.B * rows;
  view.input_sample = rows;
  Real* const start = products + (view.reverse ? view.T - 1 : 0) * view.B * rows;
  if (first) add_parts(first, 1, view.B * rows, start, start, launch);
}

template <class Cell, typename Real = typename Cell::scalar_t>
void plain_forward(const RecurrentForwardRequest& request, Real* h_n, Launcher& launch,
                   const Real* first = nullptr) {
  ForwardView<Real> view = forward_view<Cell>(request, h_n);
  const Inputs<Real> x = inputs_of<Real>(request);
  with_unit_shape<Real, Cell::kGates, false>(view.H, launch, [&](auto shape) {
    using Shape = decltype(shape);
    // Large states take their input as a product in any case: that is fewer kernels to compile.
    if constexpr (Shape::kPasses == 1) {
      if (request.I == 1 && view.w_ih && !first) {
        view.input = x.data, view.input_step = x.step, view.input_sample = x.sample;
        return walk_forward_in<Cell, Shape, true>(view, launch);
      }
    }
    multiply_inputs<Cell>(x, request.I, first, view, launch);
    walk_forward_in<Cell, Shape, false>(view, launch);
  });
}

/// The scan, the gates before it where the forward kept none, and all that follows it. `rows`: for
/// the gate gradients (T, B, kRows, H).
template <class Cell, typename Real = typename Cell::scalar_t>
void plain_backward(const RecurrentBackwardRequest& request, const Plan& plan, Real* rows,
                    Launcher& launch) {
  BackwardView<Real> view = backward_view<Cell>(request, rows);
  const Inputs<Real> x = inputs_of<Real>(request);
  const int I = static_cast<int>(request.I);
  if constexpr (Cell::kKeeps) {
    if (!view.tape.gates && view.B > 0) {
      // Where no other block reads them, a step's gradients take the place of its gates.
      static_assert(Cell::kRows == 4);
      const bool apart = plan.algorithm == Algorithm::blelloch || view.windows.warm > 0;
      Real* const gates =
          apart ? launch.template allocate<Real>(view.T * view.B * view.H * 4) : rows;
      view.tape.gates = reinterpret_cast<Quad<Real>*>(gates);
      recompute_gates<Cell>(request, view, reinterpret_cast<Quad<Real>*>(gates), launch);
    }
  }
  if (view.B > 0) scan_recurrent<Cell>(view, plan, launch);
  ParameterGradients<Real> parameters{out<Real>(request.grad_w_ih), out<Real>(request.grad_w_hh),
                                      out<Real>(request.grad_b_ih), out<Real>(request.grad_b_hh)};
  if constexpr (Cell::kPeeps) {
    if (Real* const to = std::exchange(parameters.b_hh, nullptr)) {
      const int64_t parts = ceil_div<int64_t>(view.T * view.B, kRowsOfPart);
      const int64_t count = int64_t{Cell::kGates} * view.H;
      Real* const sums = launch.template allocate<Real>(parts * count);
      launch_threads(launch, "peephole parts", peephole_parts_kernel<Cell>, parts * count, view,
                     parts, sums);
      add_parts<Real>(sums, parts, count, nullptr, to, launch);
    }
  }
  if (parameters) parameter_gradients<Cell>(view, x, request.w_ih ? I : 0, parameters, launch);
  if (request.grad_x && view.B > 0) {
    Real* const to = first_in_time(out<Real>(request.grad_x), request.grad_x_stride[0], request);
    input_gradient<Cell>(view, in<Real>(request.w_ih), I, to, launch);
  }
}

}  // namespace bppsa::cuda
