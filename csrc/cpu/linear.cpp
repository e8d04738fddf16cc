// bppsa::linear and bppsa::linear_backward on the CPU: y = x W^T + b.
//
//   x (T, B, I), contiguous in its last dimension; weight (O, I); bias (O) or none; y (T, B, O)
//   wanted: bits for the gradients of x, weight and bias
#include "../requests/linear.h"

#include "../operators/recurrent.h"
#include "crew.h"
#include "large_results.h"
#include "levels/table.h"

namespace bppsa::cpu {
namespace {

template <class Request>
Request linear_request(const Tensor& x, const Tensor& weight) {
  STD_TORCH_CHECK(x.dim() == 3 && weight.dim() == 2, "x, weight: wanted (T, B, I) and (O, I)");
  Request request{};
  request.storage = real_storage(x, "x");
  request.T = x.size(0), request.B = x.size(1), request.I = x.size(2), request.O = weight.size(0);
  STD_TORCH_CHECK(request.I > 0 && request.O > 0, "weight: wanted (O, I), O and I >= 1");
  request.x = steps(x, "x", x, {request.T, request.B, request.I}, false, request.x_stride);
  request.weight = operand(weight, "weight", x, {request.O, request.I});
  return request;
}

Parallel parallel_for(const LinearRequest& request) {
  return parallel_for_work(request.T * request.B * request.I * request.O);
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Maybe& bias) {
  auto request = linear_request<LinearForwardRequest>(x, weight);
  request.bias = operand(bias, "bias", x, {request.O});
  const Tensor output = empty_of_steps(x, {request.T, request.B, request.O});
  request.output = output.data_ptr();
  if (output.numel() > 0) kernels().linear_forward(request, parallel_for(request));
  return output;
}

std::tuple<Tensor, Tensor, Tensor> linear_backward(const Tensor& grad, const Tensor& x,
                                                   const Tensor& weight, int64_t wanted) {
  auto request = linear_request<LinearBackwardRequest>(x, weight);
  const int64_t T = request.T, B = request.B, I = request.I, O = request.O;
  request.grad = operand(grad, "grad", x, {T, B, O});
  const Tensor grad_x = wanted & 1 ? empty_of_steps(x, {T, B, I}) : empty_beside(x, {0});
  const Tensor grad_weight = empty_beside(x, {wanted & 2 ? O : 0, I});
  const Tensor grad_bias = empty_beside(x, {wanted & 4 ? O : 0});
  request.grad_x = result_data(grad_x), request.grad_weight = result_data(grad_weight);
  request.grad_bias = result_data(grad_bias);
  kernels().linear_backward(request, parallel_for(request));
  return {grad_x, grad_weight, grad_bias};
}

}  // namespace bppsa::cpu

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("linear", TORCH_BOX(&bppsa::cpu::linear));
  m.impl("linear_backward", TORCH_BOX(&bppsa::cpu::linear_backward));
}
