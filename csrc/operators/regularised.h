// bppsa::regularised and bppsa::regularised_backward: a recurrent layer in one direction, with
// layer normalisation, recurrent dropout or zoneout.
//
//   x (T, B, GH), contiguous in its last dimension: the input's sums, with their biases; or, on a
//   CPU, with w_ih (GH, I) the input (T, B, I), and b_ih, norm_ih (GH) or none
//   h0, c0 (B, H) or none; w_hh (GH, H), of one gate also (H); b_hh, norm_hh (GH), norm_c, b_c (H)
//   or none
//   enters (B, H), kept_h, kept_c (T, B, H) bool, or none
//   output (T, B, H), h_n, c_n (B, H), saved (T, B, ·); c_n and saved are empty where there are
//   none wanted: bits for the gradients of x, h0, c0, w_hh, b_hh, norm_hh, norm_c, b_c, w_ih,
//   b_ih, norm_ih; that of sums is always computed
//
// Device: empty(like, size), a tensor for a result of all steps; run(request, like);
// kTakesInput, whether there are kernels that take w_ih.
#pragma once

#include "../requests/regularised.h"
#include "recurrent.h"

namespace bppsa {

// All that both directions are given beside what is computed.
struct Regularised {
  const std::string& cell;
  const Maybe &h0, &c0;
  const Tensor& w_hh;
  const Maybe &b_hh, &norm_hh, &norm_c, &b_c, &w_ih, &b_ih, &norm_ih, &enters, &kept_h, &kept_c;
  double zoneout;
  bool reverse;
};

inline const uint8_t* kept_units(const Maybe& t, const char* name, const Tensor& like, Sizes size,
                                 bool reverse) {
  if (!t.has_value()) return nullptr;
  const int64_t last = reverse ? size.begin()[0] - 1 : 0;
  bool same = t->dim() == 3 && t->scalar_type() == ScalarType::Bool && t->is_contiguous() &&
              same_device(*t, like);
  for (int d = 0; same && d < 3; ++d) same = t->size(d) == size.begin()[d];
  STD_TORCH_CHECK(same, name, ": wanted bool, (T, B, H), contiguous");
  return static_cast<const uint8_t*>(t->data_ptr()) + last * size.begin()[1] * size.begin()[2];
}

// `like` has T steps of B samples.
template <class Device, class Request>
Request regularised_request(const Regularised& of, const Tensor& like) {
  STD_TORCH_CHECK(like.dim() == 3 && like.size(0) >= 1, "x: wanted (T, B, GH) with T >= 1");
  Request request{};
  request.storage = real_storage(like, "x");
  request.cell = cell_of(of.cell);
  const CellRow& row = row_of(request.cell);
  STD_TORCH_CHECK(of.cell == "gru" || of.cell == "lstm" || !of.norm_hh.has_value(), "cell: found '",
                  of.cell, "', wanted for layer normalisation gru or lstm");
  const int64_t T = request.T = like.size(0), B = request.B = like.size(1);
  request.diagonal = of.w_hh.dim() == 1 && row.gates == 1;
  STD_TORCH_CHECK((request.diagonal || of.w_hh.dim() == 2) && of.w_hh.size(-1) >= 1,
                  "w_hh: wanted (GH, H), or of one gate (H), H >= 1");
  const int64_t H = request.H = of.w_hh.size(-1), GH = row.gates * H;
  const bool has_c = row.states == 2, normalised = of.norm_hh.has_value();
  STD_TORCH_CHECK(has_c || !(of.c0.has_value() || of.kept_c.has_value()),
                  "c0, kept_c: found one, wanted none for a cell without c");
  STD_TORCH_CHECK((has_c && normalised) == of.norm_c.has_value() &&
                      (of.norm_c.has_value() || !of.b_c.has_value()),
                  "norm_c: wanted one of a normalised cell with c, and b_c only with it");
  request.h0 = operand(of.h0, "h0", like, {B, H}), request.c0 = operand(of.c0, "c0", like, {B, H});
  request.w_hh = request.diagonal ? operand(of.w_hh, "w_hh", like, {H})
                                  : operand(of.w_hh, "w_hh", like, {GH, H});
  request.b_hh = operand(of.b_hh, "b_hh", like, {GH});
  request.norm_hh = operand(of.norm_hh, "norm_hh", like, {GH});
  request.norm_c = operand(of.norm_c, "norm_c", like, {H});
  request.b_c = operand(of.b_c, "b_c", like, {H});
  STD_TORCH_CHECK(
      !of.w_ih.has_value() || (Device::kTakesInput && of.w_ih->dim() == 2 && of.w_ih->size(1) >= 1),
      "w_ih: wanted (GH, I), on a CPU; elsewhere none, and the input's sums as x");
  STD_TORCH_CHECK(of.w_ih.has_value() ? normalised || !of.norm_ih.has_value()
                                      : !(of.b_ih.has_value() || of.norm_ih.has_value()),
                  "b_ih, norm_ih: found one, wanted none without w_ih, or without norm_hh");
  request.I = of.w_ih.has_value() ? of.w_ih->size(1) : GH;
  request.w_ih = operand(of.w_ih, "w_ih", like, {GH, request.I});
  request.b_ih = operand(of.b_ih, "b_ih", like, {GH});
  request.norm_ih = operand(of.norm_ih, "norm_ih", like, {GH});
  request.enters = operand(of.enters, "enters", like, {B, H});
  request.kept_h = kept_units(of.kept_h, "kept_h", like, {T, B, H}, of.reverse);
  request.kept_c = kept_units(of.kept_c, "kept_c", like, {T, B, H}, of.reverse);
  request.zoneout = of.zoneout;
  request.step = request.kept_step = direction(of.reverse) * B * H;
  const int slots = has_c ? row.kept - 1 : row.kept ? row.kept : 1;
  request.saved_width = regularised_width(slots, row.states, normalised ? row.gates : 0,
                                          request.blends(), request.keeps_input(), H);
  return request;
}

template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor> regularised(
    const std::string& cell, const Tensor& x, const Maybe& h0, const Maybe& c0, const Tensor& w_hh,
    const Maybe& b_hh, const Maybe& norm_hh, const Maybe& norm_c, const Maybe& b_c,
    const Maybe& w_ih, const Maybe& b_ih, const Maybe& norm_ih, const Maybe& enters,
    const Maybe& kept_h, const Maybe& kept_c, double zoneout, bool reverse, bool saves) {
  const Regularised of{cell, h0,   c0,      w_hh,   b_hh,   norm_hh, norm_c,  b_c,
                       w_ih, b_ih, norm_ih, enters, kept_h, kept_c,  zoneout, reverse};
  auto request = regularised_request<Device, RegularisedForwardRequest>(of, x);
  const int64_t T = request.T, B = request.B, H = request.H;
  const CellRow& row = row_of(request.cell);
  request.x = steps(x, "x", x, {T, B, request.I}, reverse, request.x_stride);
  const Tensor output = Device::empty(x, {T, B, H});
  const Tensor h_n = empty_beside(x, {B, H});
  const Tensor c_n = empty_beside(x, {row.states == 2 ? B : 0, H});
  const Tensor saved = Device::empty(x, {saves ? T : 0, B, request.saved_width});
  request.output = first_step(output, reverse), request.saved = result_data(saved);
  request.h_n = h_n.data_ptr(), request.c_n = result_data(c_n);
  if (B > 0) Device::run(request, x);
  return {output, h_n, c_n, saved};
}

// Gradients of x, h0, c0, w_hh, b_hh, norm_hh, norm_c, b_c, w_ih, b_ih and norm_ih. x: the input,
// or none where its sums were given.
template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>
regularised_backward(const std::string& cell, const Maybe& grad_output, const Maybe& grad_h_n,
                     const Maybe& grad_c_n, const Tensor& output, const Tensor& saved,
                     const Maybe& x, const Maybe& h0, const Maybe& c0, const Tensor& w_hh,
                     const Maybe& b_hh, const Maybe& norm_hh, const Maybe& norm_c, const Maybe& b_c,
                     const Maybe& w_ih, const Maybe& b_ih, const Maybe& norm_ih,
                     const Maybe& enters, const Maybe& kept_h, const Maybe& kept_c, double zoneout,
                     bool reverse, int64_t wanted) {
  const Regularised of{cell, h0,   c0,      w_hh,   b_hh,   norm_hh, norm_c,  b_c,
                       w_ih, b_ih, norm_ih, enters, kept_h, kept_c,  zoneout, reverse};
  auto request = regularised_request<Device, RegularisedBackwardRequest>(of, output);
  const int64_t T = request.T, B = request.B, H = request.H;
  const int64_t GH = row_of(request.cell).gates * H;
  operand(output, "output", output, {T, B, H});
  request.output = first_step(output, reverse);
  request.saved = operand(saved, "saved", output, {T, B, request.saved_width});
  if (grad_output.has_value())
    request.grad =
        steps(*grad_output, "grad_output", output, {T, B, H}, reverse, request.grad_stride);
  request.grad_hn = operand(grad_h_n, "grad_h_n", output, {B, H});
  request.grad_cn = operand(grad_c_n, "grad_c_n", output, {B, H});
  STD_TORCH_CHECK(x.has_value() == of.w_ih.has_value(), "x: wanted with w_ih, and only then");
  if (x.has_value())
    request.x = steps(*x, "x", output, {T, B, request.I}, reverse, request.x_stride);
  const bool wants_x = !x.has_value() || (wanted & 1);
  const Tensor grad_x = Device::empty(output, {wants_x ? T : 0, B, request.I});
  if (wants_x) request.grad_x = first_step(grad_x, reverse);
  request.grad_x_step = direction(reverse) * B * request.I;
  const auto result = [&](int bit, void*& at, Sizes size, bool is_there = true) {
    const int64_t rows = (wanted >> bit & 1) && is_there ? size.begin()[0] : 0;
    const Tensor t = size.size() == 1 ? empty_beside(output, {rows})
                                      : empty_beside(output, {rows, size.begin()[1]});
    at = result_data(t);
    return t;
  };
  const Tensor grad_h0 = result(1, request.grad_h0, {B, H});
  const Tensor grad_c0 = result(2, request.grad_c0, {B, H}, row_of(request.cell).states == 2);
  const Tensor grad_w_hh =
      request.diagonal ? result(3, request.grad_w_hh, {H}) : result(3, request.grad_w_hh, {GH, H});
  const Tensor grad_b_hh = result(4, request.grad_b_hh, {GH});
  const Tensor grad_norm_hh = result(5, request.grad_norm_hh, {GH});
  const Tensor grad_norm_c = result(6, request.grad_norm_c, {H});
  const Tensor grad_b_c = result(7, request.grad_b_c, {H});
  const Tensor grad_w_ih = result(8, request.grad_w_ih, {GH, request.I}, x.has_value());
  const Tensor grad_b_ih = result(9, request.grad_b_ih, {GH}, x.has_value());
  const Tensor grad_norm_ih = result(10, request.grad_norm_ih, {GH}, x.has_value());
  Device::run(request, output);
  return {grad_x,      grad_h0,  grad_c0,   grad_w_hh, grad_b_hh,   grad_norm_hh,
          grad_norm_c, grad_b_c, grad_w_ih, grad_b_ih, grad_norm_ih};
}

}  // namespace bppsa
