// bppsa::recurrent_windows and its backward on a device that walks all windows of all samples in
// one launch. It reads and writes the tensors of the whole sequence, as bppsa::recurrent has them,
// whose other operators go on from there.
//
//   T = head + K * span steps, the head part of the first window; K = 1: the walk
//   x (T, B, I), output (T, B, P), kept (T, B, width); no projection
//   states of windows (K * B, ·), window by window, and gradients alike; met (K - 1), as there
//   warm, back = 0: windows begin with what they are given, h0 and c0, or grad_h_n and grad_c_n, of
//   all windows; else these are of one window, the one that begins, or ends, with the sequence
#pragma once

#include "recurrent_windows.h"

namespace bppsa {

// The B rows of window k, where there are all windows' rows.
inline Maybe of_window(const Maybe& t, bool all, int64_t k, int64_t windows) {
  if (!all || !t.has_value() || windows < 1) return t;
  const int64_t B = t->size(0) / windows;
  Tensor rows = *t;
  return torch::stable::narrow(rows, 0, k * B, B);
}

// Sets the windows of a request. Returns what their walks begin with: `given`, where nothing warms
// up, else yet to be written.
template <class Request>
States set_windows(Request& request, const Tensor& x, const Spans& spans, int64_t warm,
                   const Maybe& given_h, const Maybe& given_c) {
  spans.check(request);
  STD_TORCH_CHECK(!request.w_hr, "w_hr: found one, wanted none: no windows of projected states");
  STD_TORCH_CHECK(warm >= 0 && warm <= spans.span, "warm, back: found ", warm, ", wanted 0 to ",
                  spans.span);
  request.windows = spans.windows, request.span = spans.span, request.warm = warm;
  const int64_t rows = spans.windows * request.B;
  const bool two = row_of(request.cell).states == 2;
  States begun(request, x, warm ? rows : 0);
  if (warm == 0) {
    STD_TORCH_CHECK(given_h.has_value() && (given_c.has_value() || !two),
                    "h0, c0, grad_h_n, grad_c_n: found none, wanted those of all windows");
    operand(given_h, "h0, grad_h_n", x, {rows, request.P});
    operand(given_c, "c0, grad_c_n", x, {rows, request.H});
    begun.h = *given_h;
    if (two) begun.c = *given_c;
  }
  request.begun_h = result_data(begun.h), request.begun_c = result_data(begun.c);
  return begun;
}

template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> recurrent_windows_at_once(
    const std::string& cell, const Tensor& x, const Maybe& h0, const Maybe& c0, const Tensor& w_ih,
    const Tensor& w_hh, const Maybe& b_ih, const Maybe& b_hh, const Maybe& w_hr,
    const Tensor& output, const Maybe& kept, int64_t head, int64_t windows, int64_t span,
    int64_t warm, const Tensor& level_h, const Maybe& level_c, double size_h, double size_c) {
  const int64_t K = windows;
  const Maybe h = of_window(h0, warm == 0, 0, K), c = of_window(c0, warm == 0, 0, K);
  auto request = layer_request<Device, RecurrentForwardRequest>(
      cell, {x, h, c, w_ih, w_hh, b_ih, b_hh, w_hr}, false);
  const States first = set_windows(request, x, {head, K, span}, warm, h0, c0);
  const void* const of_h = operand(level_h, "level_h", x, {request.P});
  const void* const of_c = operand(level_c, "level_c", x, {request.H});
  STD_TORCH_CHECK(!first.two() || of_c, "level_c: wanted (H) for a cell with two states");
  request.output = operand(output, "output", x, {request.T, request.B, request.P});
  if (kept.has_value()) keep_whole<Device>(request, *kept, x);
  const States last(request, x, K * request.B);
  request.c_n = result_data(last.c);
  if (request.B > 0) Device::run(request, request.kept ? Keep::all : Keep::nothing, last.h);
  int32_t* met;
  const Tensor verdicts = result(met, x, {K - 1});
  Device::states_met(first.h, last.h, of_h, size_h, K, true, met);
  if (first.two()) Device::states_met(first.c, last.c, of_c, size_c, K, false, met);
  return {first.h, first.c, last.h, last.c, verdicts};
}

template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>
recurrent_windows_backward_at_once(const std::string& cell, const Maybe& grad_output,
                                   const Maybe& grad_h_n, const Maybe& grad_c_n,
                                   const Tensor& output, const Tensor& kept, const Tensor& x,
                                   const Maybe& h0, const Maybe& c0, const Tensor& w_ih,
                                   const Tensor& w_hh, const Maybe& b_ih, const Maybe& b_hh,
                                   const Maybe& w_hr, const Maybe& grad_x, int64_t wanted,
                                   int64_t head, int64_t windows, int64_t span, int64_t back,
                                   double roundings) {
  const int64_t K = windows;
  auto request = layer_request<Device, RecurrentBackwardRequest>(
      cell, {x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr}, false);
  const States entered = set_windows(request, x, {head, K, span}, back, grad_h_n, grad_c_n);
  request.output = operand(output, "output", x, {request.T, request.B, request.P});
  keep_whole<Device>(request, kept, x);
  request.grad_x = operand(grad_x, "grad_x", x, {request.T, request.B, request.I});
  request.grad_x_stride[0] = request.B * request.I, request.grad_x_stride[1] = request.I;
  set_incoming(request, grad_output, of_window(grad_h_n, back == 0, K - 1, K),
               of_window(grad_c_n, back == 0, K - 1, K), x, false);
  const auto [h, c, of_w_ih, of_w_hh, of_b_ih, of_b_hh, of_w_hr] =
      Results<Device>{x, wanted | 3}.all(request, w_hh.size(0), b_ih.has_value(), b_hh.has_value(),
                                         false, plan_of("linear", 0, 0));
  int32_t* met;
  const Tensor verdicts = result(met, x, {K - 1});
  Device::gradients_met(entered.h, h, roundings, K, true, met);
  if (entered.two()) Device::gradients_met(entered.c, c, roundings, K, false, met);
  return {entered.h, entered.c, h, c, of_w_ih, of_w_hh, of_b_ih, of_b_hh, of_w_hr, verdicts};
}

}  // namespace bppsa
