#pragma once
// A layer's forward and backward, from a request: where things lie, and with or without a
// projection.

#include <type_traits>

#include "instances.cuh"
#include "projection.cuh"

namespace bppsa::cuda {

/// Results lie the other way in time, whatever their strides are.
inline bool runs_backwards(const RecurrentRequest& request) { return request.output_step < 0; }

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

/// The first step of what a request that runs backwards in time points to the last step of.
template <typename Number>
Number* first_in_time(Number* steps, int64_t stride, const RecurrentRequest& request) {
  return steps && runs_backwards(request) ? steps + (request.T - 1) * stride : steps;
}

/// Sets what the forward and the backward of a layer have in common.
template <class Cell, class Views, typename Real = typename Cell::scalar_t>
void describe(const RecurrentRequest& request, Views& layer) {
  const int64_t step = request.x_stride[0];
  layer.x = {first_in_time(static_cast<const Real*>(request.x), step, request),
             runs_backwards(request) ? -step : step, request.x_stride[1], request.B};
  layer.I = request.I;
  const auto* const w_hh = static_cast<const Real*>(request.w_hh);
  layer.projection = {static_cast<int>(request.P), w_hh, static_cast<const Real*>(request.w_hr),
                      static_cast<const Real*>(request.h0)};
  layer.view.T = request.T, layer.view.B = request.B, layer.view.H = static_cast<int>(request.H);
  layer.view.reverse = runs_backwards(request);
  layer.view.w_hh = w_hh;
}

template <class Cell>
void layer_forward(const RecurrentForwardRequest& request, void* h_n, Launcher& launch) {
  using Real = typename Cell::scalar_t;
  if (request.B == 0) return;
  const auto in = [](const void* data) { return static_cast<const Real*>(data); };
  const auto out = [](void* data) { return static_cast<Real*>(data); };
  ForwardLayer<Real> layer{};
  describe<Cell>(request, layer);
  const Kept<Cell, Real> kept(request, out(request.kept));
  ForwardView<Real>& view = layer.view;
  view.w_ih = in(request.w_ih), view.b_ih = in(request.b_ih), view.b_hh = in(request.b_hh);
  view.h0 = in(request.h0), view.c0 = in(request.c0);
  view.output = first_in_time(out(request.output), request.output_step, request);
  view.gates = kept.gates, view.c = kept.c, layer.m = kept.m;
  view.h_n = out(h_n), view.c_n = out(request.c_n);
  if constexpr (Cell::kStates == 2) {
    if (request.w_hr) return projected_forward<Cell>(layer, launch);
  }
  plain_forward<Cell>(layer, launch);
}

template <class Cell>
void layer_backward(const RecurrentBackwardRequest& request, const Plan& plan, Launcher& launch) {
  using Real = typename Cell::scalar_t;
  const auto in = [](const void* data) { return static_cast<const Real*>(data); };
  const auto out = [](void* data) { return static_cast<Real*>(data); };
  BackwardLayer<Real> layer{};
  describe<Cell>(request, layer);
  layer.plan = plan;
  layer.w_ih = in(request.w_ih), layer.b_ih = in(request.b_ih), layer.b_hh = in(request.b_hh);
  const Kept<Cell, const Real> kept(request, in(request.kept));
  BackwardView<Real>& view = layer.view;
  const Real* const output = first_in_time(in(request.output), request.output_step, request);
  view.tape = {request.w_hr ? kept.m : output, kept.gates, kept.c,
               request.w_hr ? nullptr : in(request.h0), in(request.c0)};
  const int64_t step = request.grad_stride[0];
  view.grad_output = first_in_time(in(request.grad), step, request);
  view.grad_step = runs_backwards(request) ? -step : step;
  view.grad_sample = request.grad_stride[1];
  view.grad_h_n = in(request.grad_hn), view.grad_c_n = in(request.grad_cn);
  view.grad_h0 = out(request.grad_h0), view.grad_c0 = out(request.grad_c0);
  view.rows = launch.template allocate<Real>(view.T * view.B * view.H * Cell::kRows);
  layer.grad_x = first_in_time(out(request.grad_x), request.grad_x_step, request);
  layer.parameters = {out(request.grad_w_ih), out(request.grad_w_hh), out(request.grad_b_ih),
                      out(request.grad_b_hh)};
  layer.grad_w_hr = out(request.grad_w_hr);
  if constexpr (Cell::kStates == 2) {
    if (request.w_hr) return projected_backward<Cell>(layer, launch);
  }
  plain_backward<Cell>(layer, launch);
}

}  // namespace bppsa::cuda
