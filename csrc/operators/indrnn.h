// bppsa::indrnn and bppsa::indrnn_backward: an independently recurrent layer in one direction.
//
//   h_t = phi(x_t + u h_{t-1}), phi = tanh or relu
//   x (T, B, H), contiguous in its last dimension; h0 (B, H) or none; u (H)
//   output (T, B, H), h_n (B, H), contiguous
//   wanted: bits for the gradients of h0 and u; that of x is always computed
//
// Device: empty(like, size), a tensor for a result of all steps; run(request, like).
#pragma once

#include "../requests/indrnn.h"
#include "tensors.h"

namespace bppsa {

template <class Request>
Request indrnn_request(const Tensor& x, const Maybe& h0, const Tensor& u,
                       const std::string& nonlinearity, bool reverse) {
  STD_TORCH_CHECK(x.dim() == 3 && x.size(0) >= 1 && x.size(2) >= 1,
                  "x: wanted (T, B, H) with T >= 1 and H >= 1");
  STD_TORCH_CHECK(nonlinearity == "tanh" || nonlinearity == "relu", "nonlinearity: found '",
                  nonlinearity, "', wanted 'tanh' or 'relu'");
  Request request{};
  request.storage = real_storage(x, "x");
  request.relu = nonlinearity == "relu";
  request.T = x.size(0), request.B = x.size(1), request.H = x.size(2);
  request.u = operand(u, "u", x, {request.H});
  request.h0 = operand(h0, "h0", x, {request.B, request.H});
  request.step = direction(reverse) * request.B * request.H;
  return request;
}

// Where a recurrence begins in a tensor (T, B, H) that need be contiguous in H alone.
inline const void* indrnn_steps(const Tensor& t, const char* name, const Tensor& like, bool reverse,
                                int64_t (&stride)[2]) {
  STD_TORCH_CHECK(agrees(t, like, {like.size(0), like.size(1), like.size(2)}) &&
                      (t.stride(2) == 1 || t.size(2) <= 1 || t.numel() == 0),
                  name, ": wanted (T, B, H), contiguous in its last dimension");
  set_strides(stride, t, reverse);
  return first_step(t, reverse);
}

// The algorithm is only for the autograd formula, which sees the inputs of the operator.
template <class Device>
std::tuple<Tensor, Tensor> indrnn(const Tensor& x, const Maybe& h0, const Tensor& u,
                                  const std::string& nonlinearity, bool reverse,
                                  const std::string&) {
  auto request = indrnn_request<IndRnnForwardRequest>(x, h0, u, nonlinearity, reverse);
  request.x = indrnn_steps(x, "x", x, reverse, request.x_stride);
  const Tensor output = Device::empty(x, {request.T, request.B, request.H});
  const Tensor h_n = empty_beside(x, {request.B, request.H});
  request.output = first_step(output, reverse), request.h_n = h_n.data_ptr();
  if (request.B > 0) Device::run(request, x);
  return {output, h_n};
}

// Gradients of x, h0 and u.
template <class Device>
std::tuple<Tensor, Tensor, Tensor> indrnn_backward(const Maybe& grad_output, const Maybe& grad_h_n,
                                                   const Tensor& output, const Maybe& h0,
                                                   const Tensor& u, const std::string& nonlinearity,
                                                   bool reverse, int64_t wanted) {
  auto request = indrnn_request<IndRnnBackwardRequest>(output, h0, u, nonlinearity, reverse);
  const int64_t T = request.T, B = request.B, H = request.H;
  operand(output, "output", output, {T, B, H});
  request.output = first_step(output, reverse);
  if (grad_output.has_value())
    request.grad = indrnn_steps(*grad_output, "grad_output", output, reverse, request.grad_stride);
  request.grad_hn = operand(grad_h_n, "grad_h_n", output, {B, H});
  const Tensor grad_x = Device::empty(output, {T, B, H});
  const Tensor grad_h0 = empty_beside(output, {wanted & 1 ? B : 0, H});
  const Tensor grad_u = empty_beside(output, {wanted & 2 ? H : 0});
  request.grad_x = first_step(grad_x, reverse);
  request.grad_h0 = result_data(grad_h0), request.grad_u = result_data(grad_u);
  Device::run(request, output);
  return {grad_x, grad_h0, grad_u};
}

}  // namespace bppsa
