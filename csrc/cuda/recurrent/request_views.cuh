#pragma once
// What a request says of a layer, as the kernels' views. A request that runs backwards in time
// points to the last step, with negative strides; views begin with the first step in memory.

#include <type_traits>

#include "instances.cuh"
#include "views.cuh"

namespace bppsa::cuda {

template <typename Real>
const Real* in(const void* data) {
  return static_cast<const Real*>(data);
}
template <typename Real>
Real* out(void* data) {
  return static_cast<Real*>(data);
}

/// Results lie the other way in time, whatever their strides are.
inline bool runs_backwards(const RecurrentRequest& request) { return request.output_stride[0] < 0; }

/// From the step that a request begins at, `stride` before the next, to the first one in memory.
template <typename Number>
Number* first_in_time(Number* steps, int64_t stride, const RecurrentRequest& request) {
  return steps && runs_backwards(request) ? steps + (request.T - 1) * stride : steps;
}

// Where in `kept` its parts lie; null where it has them not. Number: the cell's type, for a
// forward, or the same `const`, for a backward.
template <class Cell, typename Number>
struct Kept {
  using Real = typename Cell::scalar_t;
  using Gates = std::conditional_t<std::is_const_v<Number>, const Quad<Real>, Quad<Real>>;
  Gates* gates = nullptr;  // of all T * B * H places
  Number *c = nullptr, *m = nullptr;

  Kept(const RecurrentRequest& request, Number* next) {
    const int64_t places = request.T * request.B * request.H;
    const bool all = request.kept_width == kept_width_of(request, Keep::all);
    if (Cell::kKeeps && all) {
      gates = reinterpret_cast<Gates*>(next);
      next += 4 * places;
    }
    if (Cell::kStates == 2 && request.kept_width > 0) c = next, next += places;
    if (request.w_hr && all) m = next;
  }
};

template <typename Real>
Inputs<Real> inputs_of(const RecurrentRequest& request) {
  const int64_t step = request.x_stride[0];
  return {first_in_time(in<Real>(request.x), step, request), runs_backwards(request) ? -step : step,
          request.x_stride[1], request.B};
}

inline Windows windows_of(const RecurrentRequest& request) {
  if (request.windows == 0) return {1, 0, request.T, 0};
  const int64_t head = request.T - request.windows * request.span;
  return {request.windows, head, request.span, request.warm};
}

/// All but the input side, which is the layer's.
template <class Cell, typename Real = typename Cell::scalar_t>
ForwardView<Real> forward_view(const RecurrentForwardRequest& request, Real* h_n) {
  const Kept<Cell, Real> kept(request, out<Real>(request.kept));
  ForwardView<Real> view{};
  view.T = request.T, view.B = request.B, view.H = static_cast<int>(request.H);
  view.reverse = runs_backwards(request);
  view.w_ih = in<Real>(request.w_ih), view.w_hh = in<Real>(request.w_hh);
  view.b_ih = in<Real>(request.b_ih), view.b_hh = in<Real>(request.b_hh);
  view.h0 = in<Real>(request.h0), view.c0 = in<Real>(request.c0);
  view.output = first_in_time(out<Real>(request.output), request.output_stride[0], request);
  view.gates = kept.gates, view.c = kept.c;
  view.h_n = h_n, view.c_n = out<Real>(request.c_n);
  view.windows = windows_of(request);
  view.begun_h = out<Real>(request.begun_h), view.begun_c = out<Real>(request.begun_c);
  return view;
}

/// `rows` is for the gate gradients.
template <class Cell, typename Real = typename Cell::scalar_t>
BackwardView<Real> backward_view(const RecurrentBackwardRequest& request, Real* rows) {
  const Kept<Cell, const Real> kept(request, in<Real>(request.kept));
  const int64_t step = request.grad_stride[0];
  BackwardView<Real> view{};
  view.T = request.T, view.B = request.B, view.H = static_cast<int>(request.H);
  view.all = request.B;
  view.reverse = runs_backwards(request);
  view.tape = {first_in_time(in<Real>(request.output), request.output_stride[0], request),
               kept.gates,
               kept.c,
               in<Real>(request.h0),
               in<Real>(request.c0),
               Cell::kPeeps ? in<Real>(request.b_hh) : nullptr,
               view.H};
  view.w_hh = in<Real>(request.w_hh);
  view.grad_output = first_in_time(in<Real>(request.grad), step, request);
  view.grad_step = view.reverse ? -step : step;
  view.grad_sample = request.grad_stride[1];
  view.grad_h_n = in<Real>(request.grad_hn), view.grad_c_n = in<Real>(request.grad_cn);
  view.rows = rows;
  view.grad_h0 = out<Real>(request.grad_h0), view.grad_c0 = out<Real>(request.grad_c0);
  view.windows = windows_of(request);
  view.begun_h = out<Real>(request.begun_h), view.begun_c = out<Real>(request.begun_c);
  return view;
}

}  // namespace bppsa::cuda
