// Requests of bppsa::recurrent and bppsa::recurrent_backward: one recurrent layer in one direction.
//
//   T steps, B batch, I input, H state, P what of it is put out, G gates
//   x (T, B, I), contiguous in I; h0 (B, P), c0 (B, H); w_ih (G H, I), w_hh (G H, P), biases (G H),
//   w_hr (P, H) or none (then P = H), contiguous; one dtype, float32 or float64
//   output (T, B, P), h_n (B, P), c_n (B, H); kept: what a forward keeps, as its device likes it
#pragma once

#include <string>

#include "../../cells/list.h"
#include "../recurrent.h"
#include "tensors.h"

namespace bppsa {

// The tensors that describe a layer.
struct LayerTensors {
  const Tensor& x;
  const Maybe &h0, &c0;
  const Tensor &w_ih, &w_hh;
  const Maybe &b_ih, &b_hh, &w_hr;
};

inline CellKind cell_of(const std::string& name) {
  std::string known;
  for (int i = 0; i < int(std::size(kCells)); ++i) {
    if (name == kCells[i].name) return CellKind(i);
    known += std::string(i ? ", '" : "'") + kCells[i].name + "'";
  }
  STD_TORCH_CHECK(false, "cell: found '", name, "', wanted one of ", known);
}

inline Keep keep_of(int64_t keep) {
  STD_TORCH_CHECK(keep >= 0 && keep <= 2, "keep: found ", keep, ", wanted 0, 1 or 2");
  return Keep(keep);
}

// Numbers that are contiguous in the last of three dimensions, time first.
inline void check_steps(const Tensor& t, const char* name, const Tensor& like, Sizes size) {
  bool same = t.dim() == 3 && t.scalar_type() == like.scalar_type() && same_device(t, like);
  int64_t d = 0;
  for (int64_t n : size) same = same && t.size(d++) == n;
  STD_TORCH_CHECK(
      same && (t.stride(2) == 1 || t.size(2) <= 1 || t.numel() == 0), name,
      ": wanted (T, B, …) of the layer, of x's dtype and device, contiguous in its last "
      "dimension");
}

// Checks the operands and sets everything but output and kept.
template <class Request>
Request layer_request(const std::string& cell, const LayerTensors& in, bool reverse) {
  const Tensor& x = in.x;
  Request request{};
  request.cell = cell_of(cell);
  request.storage = values_storage(x, "x");
  STD_TORCH_CHECK(x.dim() == 3 && x.size(0) >= 1, "x: wanted (T, B, I) with T >= 1");
  STD_TORCH_CHECK(in.w_hh.dim() == 2, "w_hh: wanted 2 dimensions");
  const CellRow& row = row_of(request.cell);
  STD_TORCH_CHECK(!in.w_hr.has_value() || row.states == 2, "w_hr: wanted none for ", cell);
  const int64_t GH = in.w_hh.size(0);
  const int64_t T = request.T = x.size(0), B = request.B = x.size(1), I = request.I = x.size(2);
  const int64_t H = request.H = GH / row.gates, P = request.P = in.w_hh.size(1);
  STD_TORCH_CHECK(H >= 1 && GH == row.gates * H && P >= 1 && (in.w_hr.has_value() || P == H),
                  "w_hh: its sizes are not those of a cell ", cell);
  check_steps(x, "x", x, {T, B, I});
  check_operand(in.h0, "h0", x, {B, P});
  check_operand(in.c0, "c0", x, {B, H});
  check_operand(in.w_ih, "w_ih", x, {GH, I});
  check_operand(in.w_hh, "w_hh", x, {GH, P});
  check_operand(in.b_ih, "b_ih", x, {GH});
  check_operand(in.b_hh, "b_hh", x, {GH});
  check_operand(in.w_hr, "w_hr", x, {P, H});
  request.x = first_step(x, reverse);
  request.x_stride[0] = direction(reverse) * x.stride(0), request.x_stride[1] = x.stride(1);
  request.h0 = data_or_null(in.h0), request.c0 = data_or_null(in.c0);
  request.w_ih = in.w_ih.data_ptr(), request.w_hh = in.w_hh.data_ptr();
  request.b_ih = data_or_null(in.b_ih), request.b_hh = data_or_null(in.b_hh);
  request.w_hr = data_or_null(in.w_hr);
  request.output_step = direction(reverse) * B * P;
  return request;
}

struct LayerGradients {
  const Maybe &output, &h_n, &c_n;
};

// Results of the backward, in the order of the operator: bit k of `wanted` stands for the k-th.
struct BackwardResults {
  Tensor x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr;
};

// empty(wanted, size): a tensor for a result.
template <class Empty>
BackwardResults set_gradients(RecurrentBackwardRequest& request, const LayerTensors& in,
                              const LayerGradients& grad, bool reverse, int64_t wanted,
                              const Empty& empty) {
  const CellRow& row = row_of(request.cell);
  const int64_t T = request.T, B = request.B, I = request.I, H = request.H, P = request.P;
  const int64_t GH = row.gates * H;
  if (grad.output.has_value()) {
    check_steps(*grad.output, "grad_output", in.x, {T, B, P});
    request.grad = first_step(*grad.output, reverse);
    request.grad_stride[0] = direction(reverse) * grad.output->stride(0);
    request.grad_stride[1] = grad.output->stride(1);
  }
  check_operand(grad.h_n, "grad_h_n", in.x, {B, P});
  check_operand(grad.c_n, "grad_c_n", in.x, {B, H});
  request.grad_hn = data_or_null(grad.h_n), request.grad_cn = data_or_null(grad.c_n);
  int bit = 0;
  const auto result = [&](bool exists, Sizes size) {
    const bool is_wanted = wanted >> bit++ & 1;
    return exists && is_wanted ? empty(size) : empty_beside(in.x, {0});
  };
  BackwardResults results{result(true, {T, B, I}),
                          result(true, {B, P}),
                          result(row.states == 2, {B, H}),
                          result(true, {GH, I}),
                          result(true, {GH, P}),
                          result(in.b_ih.has_value(), {GH}),
                          result(in.b_hh.has_value(), {GH}),
                          result(in.w_hr.has_value(), {P, H})};
  if (results.x.numel()) request.grad_x = first_step(results.x, reverse);
  request.grad_x_step = direction(reverse) * B * I;
  request.grad_h0 = result_data(results.h0), request.grad_c0 = result_data(results.c0);
  request.grad_w_ih = result_data(results.w_ih), request.grad_w_hh = result_data(results.w_hh);
  request.grad_b_ih = result_data(results.b_ih), request.grad_b_hh = result_data(results.b_hh);
  request.grad_w_hr = result_data(results.w_hr);
  return results;
}

}  // namespace bppsa
