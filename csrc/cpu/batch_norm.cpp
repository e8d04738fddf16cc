// bppsa::batch_norm and bppsa::batch_norm_backward on the CPU: by the statistics of the batch, in
// the sparse layers' layout. x, y, grad: (channels, n), contiguous; mean, var: (channels).
#include "../sparse/norm_kernels.h"
#include "sparse_glue.h"

namespace bppsa {

namespace {

void set_norm(NormArgs& args, const Tensor& x, const std::optional<Tensor>& weight, double eps,
              bool relu) {
  STD_TORCH_CHECK(x.dim() == 2 && x.is_contiguous() && x.is_cpu() && x.size(1) >= 1,
                  "x: wanted (channels, n), contiguous, on the CPU");
  args.storage = values_storage(x, "x");
  args.channels = x.size(0), args.n = x.size(1);
  args.eps = eps, args.relu = relu;
  args.x = x.data_ptr();
  check_operand(weight, "weight", x, {args.channels});
  args.weight = data_or_null(weight);
}

}  // namespace

// y, mean, var.
std::tuple<Tensor, Tensor, Tensor> batch_norm_cpu(const Tensor& x,
                                                  const std::optional<Tensor>& weight,
                                                  const std::optional<Tensor>& bias, double eps,
                                                  bool relu) {
  NormForwardArgs args{};
  set_norm(args, x, weight, eps, relu);
  check_operand(bias, "bias", x, {args.channels});
  args.bias = data_or_null(bias);
  Tensor y = torch::stable::empty_like(x);
  Tensor mean = empty_beside(x, {args.channels}), var = empty_beside(x, {args.channels});
  args.y = y.data_ptr(), args.mean = mean.data_ptr(), args.var = var.data_ptr();
  norm_kernels().forward(args, parallel_for_work(x.numel()));
  return {y, mean, var};
}

// Gradients of x, weight, bias.
std::tuple<Tensor, Tensor, Tensor> batch_norm_backward_cpu(const Tensor& grad, const Tensor& x,
                                                           const Tensor& y,
                                                           const std::optional<Tensor>& weight,
                                                           const Tensor& mean, const Tensor& var,
                                                           double eps, bool relu) {
  NormBackwardArgs args{};
  set_norm(args, x, weight, eps, relu);
  check_operand(grad, "grad", x, {args.channels, args.n});
  check_operand(y, "y", x, {args.channels, args.n});
  check_operand(mean, "mean", x, {args.channels});
  check_operand(var, "var", x, {args.channels});
  args.grad = grad.data_ptr(), args.y = y.data_ptr();
  args.mean = mean.data_ptr(), args.var = var.data_ptr();
  Tensor grad_x = torch::stable::empty_like(x);
  Tensor grad_weight = empty_beside(x, {args.channels}),
         grad_bias = empty_beside(x, {args.channels});
  args.grad_x = grad_x.data_ptr();
  args.grad_weight = grad_weight.data_ptr(), args.grad_bias = grad_bias.data_ptr();
  norm_kernels().backward(args, parallel_for_work(x.numel()));
  return {grad_x, grad_weight, grad_bias};
}

}  // namespace bppsa

STABLE_TORCH_LIBRARY_FRAGMENT(bppsa, m) {
  m.def(
      "batch_norm(Tensor x, Tensor? weight, Tensor? bias, float eps, bool relu) -> "
      "(Tensor, Tensor, Tensor)");
  m.def(
      "batch_norm_backward(Tensor grad, Tensor x, Tensor y, Tensor? weight, Tensor mean, "
      "Tensor var, float eps, bool relu) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("batch_norm", TORCH_BOX(&bppsa::batch_norm_cpu));
  m.impl("batch_norm_backward", TORCH_BOX(&bppsa::batch_norm_backward_cpu));
}
