// bppsa::batch_norm and bppsa::batch_norm_backward on the CPU: by the statistics of the batch, in
// the sparse layers' layout. x, y, grad: (channels, n), contiguous; weight, bias, mean, var:
// (channels).
#include "../operators/tensors.h"
#include "../requests/sparse.h"
#include "crew.h"
#include "levels/table.h"

namespace bppsa::cpu {
namespace {

template <class Request>
Request batch_norm_request(const Tensor& x, const Maybe& weight, double eps, bool relu) {
  STD_TORCH_CHECK(x.dim() == 2 && x.is_contiguous() && x.size(1) >= 1,
                  "x: wanted (channels, n), contiguous");
  Request request{};
  request.storage = real_storage(x, "x");
  request.channels = x.size(0), request.n = x.size(1);
  request.eps = eps, request.relu = relu;
  request.x = x.data_ptr();
  request.weight = operand(weight, "weight", x, {request.channels});
  return request;
}

}  // namespace

// y, mean, var.
std::tuple<Tensor, Tensor, Tensor> batch_norm(const Tensor& x, const Maybe& weight,
                                              const Maybe& bias, double eps, bool relu) {
  auto request = batch_norm_request<BatchNormForwardRequest>(x, weight, eps, relu);
  const int64_t channels = request.channels;
  request.bias = operand(bias, "bias", x, {channels});
  const std::tuple results{result(request.y, x, {channels, request.n}),
                           result(request.mean, x, {channels}), result(request.var, x, {channels})};
  kernels().batch_norm_forward(request, parallel_for_work(x.numel()));
  return results;
}

// Gradients of x, weight, bias.
std::tuple<Tensor, Tensor, Tensor> batch_norm_backward(const Tensor& grad, const Tensor& x,
                                                       const Tensor& y, const Maybe& weight,
                                                       const Tensor& mean, const Tensor& var,
                                                       double eps, bool relu) {
  auto request = batch_norm_request<BatchNormBackwardRequest>(x, weight, eps, relu);
  const int64_t channels = request.channels;
  request.grad = operand(grad, "grad", x, {channels, request.n});
  request.y = operand(y, "y", x, {channels, request.n});
  request.mean = operand(mean, "mean", x, {channels});
  request.var = operand(var, "var", x, {channels});
  const std::tuple results{result(request.grad_x, x, {channels, request.n}),
                           result(request.grad_weight, x, {channels}),
                           result(request.grad_bias, x, {channels})};
  kernels().batch_norm_backward(request, parallel_for_work(x.numel()));
  return results;
}

}  // namespace bppsa::cpu

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("batch_norm", TORCH_BOX(&bppsa::cpu::batch_norm));
  m.impl("batch_norm_backward", TORCH_BOX(&bppsa::cpu::batch_norm_backward));
}
