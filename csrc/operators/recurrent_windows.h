// bppsa::recurrent_windows and its backward: one sequence in windows of time, which are walked side
// by side as samples of a batch where they lie, and compared. What has not met is the caller's to
// walk again; the kernels know nothing of windows.
//
//   T = head + windows * span steps: the head is walked first, by itself
//   x (T, 1, I), output (T, 1, P), kept (T, 1, width), grad_x (T, 1, I) as for recurrent_into
//   met (windows - 1), int32: whether each window but the first began with what it should have
#pragma once

#include <cstring>

#include "recurrent_into.h"
#include "windows_met.h"

namespace bppsa {

inline void check_alone(const RecurrentRequest& request) {
  STD_TORCH_CHECK(request.B == 1, "x: found ", request.B, " samples, wanted 1");
}

// Where the windows of a sequence lie.
struct Spans {
  int64_t head, windows, span;

  template <class Request>
  void check(const Request& request) const {
    STD_TORCH_CHECK(head >= 0 && windows >= 1 && span >= 1 && head + windows * span == request.T,
                    "head, windows, span: found ", head, ", ", windows, ", ", span, ", wanted ",
                    request.T, " steps");
  }
};

// `n` parts of `steps` steps each of a sequence's request, from step `first` on, `apart` steps from
// each other. Their states are set apart.
template <class Request>
Request parts_of(Request request, int64_t first, int64_t n, int64_t steps, int64_t apart) {
  const int64_t bytes = bytes_of(request.storage);
  const auto move = [&](auto& at, int64_t (&stride)[2]) {
    if (at) at = const_cast<char*>(static_cast<const char*>(at)) + first * stride[0] * bytes;
    stride[1] = apart * stride[0];
  };
  move(request.x, request.x_stride);
  move(request.output, request.output_stride);
  move(request.kept, request.kept_stride);
  if constexpr (std::is_same_v<Request, RecurrentBackwardRequest>) {
    move(request.grad, request.grad_stride);
    move(request.grad_x, request.grad_x_stride);
  }
  request.T = steps, request.B = n;
  return request;
}

// The states of windows: h (windows, P), and an LSTM's c (windows, H).
struct States {
  Tensor h, c;

  template <class Request>
  States(const Request& request, const Tensor& like, int64_t windows)
      : h(empty_beside(like, {windows, request.P})),
        c(empty_beside(like, {row_of(request.cell).states == 2 ? windows : 0, request.H})) {}

  bool two() const { return c.size(0) > 0; }
  static char* row(const Tensor& t, int64_t k) {
    return data<char>(t) + k * t.size(1) * bytes_of(storage_of(t));
  }
  void* h_of(int64_t k) const { return row(h, k); }
  void* c_of(int64_t k) const { return two() ? row(c, k) : nullptr; }
  Tensor h_from(int64_t k, int64_t n) const {
    Tensor of_all = h;
    return torch::stable::narrow(of_all, 0, k, n);
  }

  // Rows from k on; zeros where `from` is null.
  static void put(const Tensor& t, int64_t k, const void* from, int64_t rows = 1) {
    const int64_t bytes = rows * t.size(1) * bytes_of(storage_of(t));
    if (from)
      std::memcpy(row(t, k), from, bytes);
    else
      std::memset(row(t, k), 0, bytes);
  }
  void put(int64_t k, const void* from_h, const void* from_c, int64_t rows = 1) const {
    put(h, k, from_h, rows);
    if (two()) put(c, k, from_c, rows);
  }
};

// Returns first h and c, last h and c, met.
//   warm: steps before each window but the first, walked from zeros for its first state
//   level_h (P), level_c (H), size_h, size_c: see StatesNear
template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> recurrent_windows(
    const std::string& cell, const Tensor& x, const Maybe& h0, const Maybe& c0, const Tensor& w_ih,
    const Tensor& w_hh, const Maybe& b_ih, const Maybe& b_hh, const Maybe& w_hr,
    const Tensor& output, const Maybe& kept, int64_t head, int64_t windows, int64_t span,
    int64_t warm, const Tensor& level_h, const Maybe& level_c, double size_h, double size_c) {
  auto whole = layer_request<Device, RecurrentForwardRequest>(
      cell, {x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr}, false);
  const int64_t P = whole.P, H = whole.H, K = windows;
  check_alone(whole);
  Spans{head, K, span}.check(whole);
  STD_TORCH_CHECK(warm >= 0 && warm <= span, "warm: found ", warm, ", wanted 0 to ", span);
  const void* level[2] = {operand(level_h, "level_h", x, {P}), operand(level_c, "level_c", x, {H})};
  whole.output =
      const_cast<void*>(steps(output, "output", x, {whole.T, 1, P}, false, whole.output_stride));
  if (kept.has_value()) keep_at(whole, *kept, x);
  const Keep keep = whole.kept ? Keep::all : Keep::nothing;
  const States first(whole, x, K), last(whole, x, K);
  STD_TORCH_CHECK(!first.two() || level[1], "level_c: wanted (H) for a cell with two states");

  if (head) {
    auto request = parts_of(whole, 0, 1, head, 0);
    request.c_n = first.c_of(0);
    Device::run(request, keep, first.h_from(0, 1));
  } else {
    first.put(0, whole.h0, whole.c0);
  }
  if (warm) {
    auto request = parts_of(whole, head + span - warm, K - 1, warm, span);
    request.h0 = request.c0 = nullptr;
    const int64_t apart = (P + 31) / 32 * 32;  // that threads write no cache line of another's
    const Tensor scratch = empty_beside(x, {K - 1, apart});
    request.output = scratch.data_ptr(), request.kept = nullptr, request.kept_width = 0;
    request.output_stride[0] = 0, request.output_stride[1] = apart;
    request.c_n = first.c_of(1);
    Device::run(request, Keep::nothing, first.h_from(1, K - 1));
  } else {
    first.put(1, nullptr, nullptr, K - 1);
  }
  auto request = parts_of(whole, head, K, span, span);
  request.h0 = first.h_of(0), request.c0 = first.c_of(0);
  request.c_n = last.c_of(0);
  Device::run(request, keep, last.h);

  int32_t* met;
  const Tensor verdicts = result(met, x, {K - 1});
  with_numbers_of(x, [&](auto number) {
    using T = decltype(number);
    const auto near = [&](const Tensor& a, const Tensor& b, int64_t k, int part, double size) {
      const int64_t n = a.size(1);
      const StatesNear<T> near{static_cast<const T*>(level[part]), T(size)};
      return all_near(data<T>(a) + k * n, data<T>(b) + (k - 1) * n, n, near);
    };
    for (int64_t k = 1; k < K; ++k)
      met[k - 1] = near(first.h, last.h, k, 0, size_h) &&
                   (!first.two() || near(first.c, last.c, k, 1, size_c));
  });
  return {first.h, first.c, last.h, last.c, verdicts};
}

// The states before windows, by the results of their forward.
inline States states_before(const RecurrentBackwardRequest& whole, const Tensor& x,
                            const Spans& spans) {
  const States found(whole, x, spans.windows);
  const int64_t bytes = bytes_of(whole.storage), units = 16 / bytes;
  const int64_t c_at = whole.kept_width - (whole.H + units - 1) / units * units;
  const auto row = [&](const void* from, int64_t step, int64_t column) {
    return static_cast<const char*>(from) + (step + column) * bytes;
  };
  for (int64_t k = 0; k < spans.windows; ++k) {
    const int64_t before = spans.head + k * spans.span - 1;
    if (before < 0)
      found.put(k, whole.h0, whole.c0);
    else
      found.put(k, row(whole.output, before * whole.output_stride[0], 0),
                found.two() ? row(whole.kept, before * whole.kept_stride[0], c_at) : nullptr);
  }
  return found;
}

inline void add_to(const Tensor& sum, const Tensor& part) {
  with_numbers_of(sum, [&](auto number) {
    using T = decltype(number);
    for (int64_t i = 0; i < sum.numel(); ++i) data<T>(sum)[i] += data<T>(part)[i];
  });
}

// Returns what entered at the windows' ends, h and c; what left at their starts, h and c; the
// gradients of w_ih, w_hh, b_ih, b_hh and w_hr; met. That of x is written. If all have met, the
// head is done as well, and what left at the first start is the gradient of the first state.
//   back: steps behind a window by which the gradient that enters it is guessed
//   roundings: how far a walk's gradients are from the truth, see GradientsNear
template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>
recurrent_windows_backward(const std::string& cell, const Maybe& grad_output, const Maybe& grad_h_n,
                           const Maybe& grad_c_n, const Tensor& output, const Tensor& kept,
                           const Tensor& x, const Maybe& h0, const Maybe& c0, const Tensor& w_ih,
                           const Tensor& w_hh, const Maybe& b_ih, const Maybe& b_hh,
                           const Maybe& w_hr, const Maybe& grad_x, int64_t wanted, int64_t head,
                           int64_t windows, int64_t span, int64_t back, double roundings) {
  auto whole = layer_request<Device, RecurrentBackwardRequest>(
      cell, {x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr}, false);
  const int64_t T = whole.T, K = windows;
  const Spans spans{head, K, span};
  check_alone(whole);
  spans.check(whole);
  STD_TORCH_CHECK(back >= 1 && back <= span, "back: found ", back, ", wanted 1 to ", span);
  whole.output = steps(output, "output", x, {T, 1, whole.P}, false, whole.output_stride);
  keep_at(whole, kept, x);
  STD_TORCH_CHECK(whole.kept_width == Device::kept_width(whole, Keep::least) ||
                      whole.kept_width == Device::kept_width(whole, Keep::all),
                  "kept: wanted what a forward with keep = 1 or 2 wrote");
  if (grad_x.has_value())
    whole.grad_x =
        const_cast<void*>(steps(*grad_x, "grad_x", x, {T, 1, whole.I}, false, whole.grad_x_stride));
  set_incoming(whole, grad_output, grad_h_n, grad_c_n, x, false);
  const States before = states_before(whole, x, spans), entered(whole, x, K);

  if (whole.grad) {
    auto request = parts_of(whole, head + span, K - 1, back, span);
    request.h0 = before.h_of(1), request.c0 = before.c_of(1);
    request.grad_hn = request.grad_cn = nullptr, request.grad_x = nullptr;
    request.grad_h0 = entered.h_of(0), request.grad_c0 = entered.c_of(0);
    Device::run(request, plan_of("linear", 0, 0), x);
  } else {
    entered.put(0, nullptr, nullptr, K - 1);
  }
  entered.put(K - 1, whole.grad_hn, whole.grad_cn);

  // All gradients of some parts, whose states and incoming gradients are set.
  const auto all_of = [&](RecurrentBackwardRequest request) {
    return Results<Device>{x, wanted | 3}.all(request, w_hh.size(0), b_ih.has_value(),
                                              b_hh.has_value(), w_hr.has_value(),
                                              plan_of("linear", 0, 0));
  };
  auto request = parts_of(whole, head, K, span, span);
  request.h0 = before.h_of(0), request.c0 = before.c_of(0);
  request.grad_hn = entered.h_of(0), request.grad_cn = entered.c_of(0);
  const auto [h, c, of_w_ih, of_w_hh, of_b_ih, of_b_hh, of_w_hr] = all_of(request);

  int32_t* met;
  const Tensor verdicts = result(met, x, {K - 1});
  std::fill(met, met + K - 1, 1);
  with_numbers_of(x, [&](auto number) {
    using R = decltype(number);
    gradients_met(data<R>(entered.h), data<R>(h), R(roundings), K, whole.P, met);
    if (entered.two()) gradients_met(data<R>(entered.c), data<R>(c), R(roundings), K, whole.H, met);
  });
  if (head && std::all_of(met, met + K - 1, [](int32_t good) { return good; })) {
    auto request = parts_of(whole, 0, 1, head, 0);
    request.grad_hn = h.data_ptr(), request.grad_cn = result_data(c);
    const auto [head_h, head_c, a, b, d, e, f] = all_of(request);
    States::put(h, 0, head_h.data_ptr());
    if (entered.two()) States::put(c, 0, head_c.data_ptr());
    add_to(of_w_ih, a), add_to(of_w_hh, b), add_to(of_b_ih, d), add_to(of_b_hh, e);
    add_to(of_w_hr, f);
  }
  return {entered.h, entered.c, h, c, of_w_ih, of_w_hh, of_b_ih, of_b_hh, of_w_hr, verdicts};
}

}  // namespace bppsa
