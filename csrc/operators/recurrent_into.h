// bppsa::recurrent_into and its backward: a recurrent layer whose inputs and results lie wherever
// the caller has them, at any distance from step to step and from sample to sample. So windows of
// one sequence are samples of a batch without being copied.
//
//   x (T, B, I), output (T, B, P), kept (T, B, width), grad_output (T, B, P), grad_x (T, B, I):
//   contiguous in their last dimension. Where results of two samples would lie in one place, that
//   is the caller's fault.
#pragma once

#include "recurrent.h"

namespace bppsa {

// Memory for the results of a forward over x: output (T, B, P) and what it keeps, contiguous.
template <class Device>
std::tuple<Tensor, Tensor> recurrent_room(const std::string& cell, const Tensor& x,
                                          const Tensor& w_ih, const Tensor& w_hh, const Maybe& w_hr,
                                          int64_t keep) {
  const auto request = layer_request<Device, RecurrentForwardRequest>(
      cell, {x, {}, {}, w_ih, w_hh, {}, {}, w_hr}, false);
  STD_TORCH_CHECK(keep >= 0 && keep <= 2, "keep: found ", keep, ", wanted 0, 1 or 2");
  return {Device::empty(x, {request.T, request.B, request.P}),
          Device::empty(x, {request.T, request.B, Device::kept_width(request, Keep(keep))})};
}

template <class Request>
void keep_at(Request& request, const Tensor& kept, const Tensor& x) {
  request.kept_width = kept.dim() == 3 ? kept.size(2) : 0;
  const void* at = steps(kept, "kept", x, {request.T, request.B, request.kept_width}, false,
                         request.kept_stride);
  request.kept = request.kept_width ? const_cast<void*>(at) : nullptr;
}

// Without output and kept the last state alone is wanted.
template <class Device>
std::tuple<Tensor, Tensor> recurrent_into(const std::string& cell, const Tensor& x, const Maybe& h0,
                                          const Maybe& c0, const Tensor& w_ih, const Tensor& w_hh,
                                          const Maybe& b_ih, const Maybe& b_hh, const Maybe& w_hr,
                                          const Maybe& output, const Maybe& kept) {
  auto request = layer_request<Device, RecurrentForwardRequest>(
      cell, {x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr}, false);
  const int64_t B = request.B, P = request.P;
  Tensor scratch = x;
  if (output.has_value()) {
    request.output = const_cast<void*>(
        steps(*output, "output", x, {request.T, B, P}, false, request.output_stride));
  } else {
    const int64_t apart = (P + 31) / 32 * 32;  // that threads write no cache line of another's
    scratch = empty_beside(x, {B, apart});
    request.output = scratch.data_ptr();
    request.output_stride[0] = 0, request.output_stride[1] = apart;
  }
  if (kept.has_value()) keep_at(request, *kept, x);
  const Tensor h_n = empty_beside(x, {B, P});
  const Tensor c_n = empty_beside(x, {row_of(request.cell).states == 2 ? B : 0, request.H});
  request.c_n = result_data(c_n);
  if (B > 0) Device::run(request, request.kept ? Keep::all : Keep::nothing, h_n);
  return {h_n, c_n};
}

// The gradients of h0, c0, the weights and biases; that of x is written.
template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> recurrent_backward_into(
    const std::string& cell, const Maybe& grad_output, const Maybe& grad_h_n, const Maybe& grad_c_n,
    const Tensor& output, const Tensor& kept, const Tensor& x, const Maybe& h0, const Maybe& c0,
    const Tensor& w_ih, const Tensor& w_hh, const Maybe& b_ih, const Maybe& b_hh, const Maybe& w_hr,
    const Maybe& grad_x, int64_t wanted) {
  auto request = layer_request<Device, RecurrentBackwardRequest>(
      cell, {x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr}, false);
  const int64_t T = request.T, B = request.B, I = request.I, P = request.P;
  request.output = steps(output, "output", x, {T, B, P}, false, request.output_stride);
  keep_at(request, kept, x);
  const int64_t width = request.kept_width;
  STD_TORCH_CHECK(width == Device::kept_width(request, Keep::least) ||
                      width == Device::kept_width(request, Keep::all),
                  "kept: wanted what a forward with keep = 1 or 2 wrote");
  if (grad_x.has_value())
    request.grad_x =
        const_cast<void*>(steps(*grad_x, "grad_x", x, {T, B, I}, false, request.grad_x_stride));
  set_incoming(request, grad_output, grad_h_n, grad_c_n, x, false);
  Results<Device> results{x, wanted};
  return results.all(request, w_hh.size(0), b_ih.has_value(), b_hh.has_value(), w_hr.has_value(),
                     plan_of("linear", 0, 0));
}

}  // namespace bppsa
