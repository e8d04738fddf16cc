// What pruned layers are made of, on the CPU: bppsa::sparse_conv2d and its backward (a layer with
// few weights), bppsa::batch_norm and its backward (by the statistics of the batch, in the sparse
// layers' layout), bppsa::take_surviving and bppsa::put_surviving (between a dense weight and the
// values of its surviving entries).
#include <algorithm>

#include "../requests/from_tensors/batch_norm.h"
#include "../requests/from_tensors/plan.h"
#include "../requests/from_tensors/sparse_conv.h"
#include "levels/table.h"

namespace bppsa::cpu {
namespace {

Parallel parallel_for(const SparseConvRequest& request, const Tensor& values) {
  return parallel_for_work(request.samples * request.out_size[0] * request.out_size[1] *
                           (values.numel() + request.out_channels));
}

// `index` ascends: trusted, see tensors.h.
const int64_t* index_of(const Tensor& index) {
  STD_TORCH_CHECK(index.dim() == 1 && index.is_contiguous() && index.is_cpu() &&
                      index.scalar_type() == ScalarType::Long,
                  "index: wanted one dimension of int64, contiguous, on the CPU");
  const auto* const numbers = data<const int64_t>(index);
  if (checks_patterns()) check_ascending(numbers, index.numel(), true, "index");
  return numbers;
}

// Calls body(pointer) with the tensor's memory as numbers of its size.
template <class Body>
void with_numbers(const Tensor& t, const Body& body) {
  if (storage_of(t) == Storage::f64) return body(static_cast<uint64_t*>(t.data_ptr()));
  STD_TORCH_CHECK(storage_of(t) == Storage::f32, "weight: wanted float32 or float64");
  body(static_cast<uint32_t*>(t.data_ptr()));
}

constexpr int64_t kGrain = 1 << 14;

}  // namespace

// relu, pool: what follows in the same pass; places, a second result, is of size 0 without a
// pooling. Results lie as the kernels write them, (channels, rows, columns, samples). The
// transposed pattern and groups (which the entries contain) are only for the autograd formula,
// which sees the inputs of the operator.
std::tuple<Tensor, Tensor> sparse_conv2d(const Tensor& x, const Tensor& values, const Maybe& bias,
                                         const Tensor& rows, const Tensor& entries, const Tensor&,
                                         const Tensor&, const Tensor&, Ints kernel, Ints stride,
                                         Ints padding, Ints dilation, int64_t, bool relu,
                                         bool pool) {
  auto request = conv_request<SparseForwardRequest>(
      {x, values, rows, entries}, {kernel, stride, padding, dilation}, relu, pool);
  check_operand(bias, "bias", x, {request.out_channels});
  const Sizes size{request.out_channels, request.result_size[0], request.result_size[1],
                   request.samples};
  Tensor output = empty_beside(x, size);
  Tensor places = empty_of(x, pool ? size : Sizes{0}, ScalarType::Byte);
  if (output.numel() == 0) return {output, places};
  request.bias = data_or_null(bias);
  request.output = output.data_ptr();
  if (pool) request.places = data<uint8_t>(places);
  kernels().sparse_forward(request, parallel_for(request, values));
  return {output, places};
}

// wanted: bit k for the k-th result; others are tensors of size 0.
std::tuple<Tensor, Tensor, Tensor> sparse_conv2d_backward(
    const Tensor& grad, const Maybe& output, const Maybe& places, const Tensor& x,
    const Tensor& values, const Tensor& rows, const Tensor& entries, const Tensor& rows_t,
    const Tensor& entries_t, const Tensor& order_t, Ints kernel, Ints stride, Ints padding,
    Ints dilation, int64_t wanted) {
  auto request = conv_backward_request({x, values, rows, entries},
                                       {grad, output, places, rows_t, entries_t, order_t},
                                       {kernel, stride, padding, dilation});
  const auto result = [&](int bit, Sizes size) {
    return empty_beside(x, wanted >> bit & 1 ? size : Sizes{0});
  };
  const Tensor grad_x =
      result(0, {request.in_channels, request.in_size[0], request.in_size[1], request.samples});
  const Tensor grad_values = result(1, {values.numel()});
  const Tensor grad_bias = result(2, {request.out_channels});
  request.grad_x = result_data(grad_x);
  request.grad_values = result_data(grad_values), request.grad_bias = result_data(grad_bias);
  if (grad.numel() > 0) {
    kernels().sparse_backward(request, parallel_for(request, values));
  } else {
    for (const Tensor* t : {&grad_x, &grad_values, &grad_bias})
      if (t->numel()) std::memset(t->data_ptr(), 0, t->numel() * bytes_of(request.storage));
  }
  return {grad_x, grad_values, grad_bias};
}

// y, mean, var.
std::tuple<Tensor, Tensor, Tensor> batch_norm(const Tensor& x, const Maybe& weight,
                                              const Maybe& bias, double eps, bool relu) {
  auto request = batch_norm_request<BatchNormForwardRequest>(x, weight, eps, relu);
  check_operand(bias, "bias", x, {request.channels});
  request.bias = data_or_null(bias);
  Tensor y = torch::stable::empty_like(x);
  Tensor mean = empty_beside(x, {request.channels}), var = empty_beside(x, {request.channels});
  request.y = y.data_ptr(), request.mean = mean.data_ptr(), request.var = var.data_ptr();
  kernels().batch_norm_forward(request, parallel_for_work(x.numel()));
  return {y, mean, var};
}

// Gradients of x, weight, bias.
std::tuple<Tensor, Tensor, Tensor> batch_norm_backward(const Tensor& grad, const Tensor& x,
                                                       const Tensor& y, const Maybe& weight,
                                                       const Tensor& mean, const Tensor& var,
                                                       double eps, bool relu) {
  auto request = batch_norm_request<BatchNormBackwardRequest>(x, weight, eps, relu);
  check_operand(grad, "grad", x, {request.channels, request.n});
  check_operand(y, "y", x, {request.channels, request.n});
  check_operand(mean, "mean", x, {request.channels});
  check_operand(var, "var", x, {request.channels});
  request.grad = grad.data_ptr(), request.y = y.data_ptr();
  request.mean = mean.data_ptr(), request.var = var.data_ptr();
  Tensor grad_x = torch::stable::empty_like(x);
  Tensor grad_weight = empty_beside(x, {request.channels}),
         grad_bias = empty_beside(x, {request.channels});
  request.grad_x = grad_x.data_ptr();
  request.grad_weight = grad_weight.data_ptr(), request.grad_bias = grad_bias.data_ptr();
  kernels().batch_norm_backward(request, parallel_for_work(x.numel()));
  return {grad_x, grad_weight, grad_bias};
}

Tensor take_surviving(const Tensor& weight, const Tensor& index) {
  STD_TORCH_CHECK(weight.is_contiguous(), "weight: wanted contiguous");
  const int64_t* at = index_of(index);
  const int64_t n = index.numel();
  STD_TORCH_CHECK(n == 0 || (at[0] >= 0 && at[n - 1] < weight.numel()), "index: beyond the weight");
  Tensor values = empty_beside(weight, {n});
  with_numbers(weight, [&](auto* from) {
    auto* to = static_cast<decltype(from)>(values.data_ptr());
    torch::stable::parallel_for(0, n, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t e = begin; e < end; ++e) to[e] = from[at[e]];
    });
  });
  return values;
}

// A block is cleared and filled while it is in the first-level cache.
Tensor put_surviving(const Tensor& values, const Tensor& index, int64_t size) {
  const int64_t* at = index_of(index);
  const int64_t n = index.numel();
  check_operand(values, "values", values, {n});
  STD_TORCH_CHECK(n == 0 || (at[0] >= 0 && at[n - 1] < size), "index: beyond the size");
  constexpr int64_t kBlock = 1 << 12;
  Tensor weight = empty_beside(values, {size});
  with_numbers(values, [&](const auto* from) {
    auto* to =
        static_cast<std::remove_const_t<std::remove_pointer_t<decltype(from)>>*>(weight.data_ptr());
    torch::stable::parallel_for(0, size, kGrain, [&](int64_t begin, int64_t end) {
      int64_t e = std::lower_bound(at, at + n, begin) - at;
      for (int64_t i = begin; i < end; i += kBlock) {
        const int64_t last = std::min(i + kBlock, end);
        std::fill(to + i, to + last, 0);
        for (; e < n && at[e] < last; ++e) to[at[e]] = from[e];
      }
    });
  });
  return weight;
}

}  // namespace bppsa::cpu

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("sparse_conv2d", TORCH_BOX(&bppsa::cpu::sparse_conv2d));
  m.impl("sparse_conv2d_backward", TORCH_BOX(&bppsa::cpu::sparse_conv2d_backward));
  m.impl("batch_norm", TORCH_BOX(&bppsa::cpu::batch_norm));
  m.impl("batch_norm_backward", TORCH_BOX(&bppsa::cpu::batch_norm_backward));
  m.impl("take_surviving", TORCH_BOX(&bppsa::cpu::take_surviving));
  m.impl("put_surviving", TORCH_BOX(&bppsa::cpu::put_surviving));
}
