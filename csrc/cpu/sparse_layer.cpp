// bppsa::sparse_conv2d and bppsa::sparse_conv2d_backward on the CPU: a layer with few weights.
//
// The pattern (see kernels.h) is trusted: bppsa_lightning.ops.SparsePattern makes it. Results lie
// as the kernels write them, (channels, rows, columns, samples). kernel, stride, dilation: rows,
// columns. padding: top, bottom, left, right. relu, pool: what follows in the same pass; places, a
// second result, is of size 0 without a pooling. wanted: bit k for the k-th result of the backward;
// others are tensors of size 0.
#include <vector>

#include "sparse_glue.h"

namespace bppsa {

using Ints = std::vector<int64_t>;

static const int32_t* indices_of(const Tensor& t, const char* name, int64_t n) {
  STD_TORCH_CHECK(t.scalar_type() == torch::headeronly::ScalarType::Int && t.is_contiguous() &&
                      t.is_cpu() && t.numel() == n,
                  name, ": wanted ", n, " numbers of int32, contiguous, on the CPU");
  return static_cast<const int32_t*>(t.data_ptr());
}

static void set_strides(int64_t (&stride)[4], const Tensor& t) {
  for (int d = 0; d < 4; ++d) stride[d] = t.stride(d);
}

static void set_layer(SparseLayerArgs& args, const Tensor& x, const Tensor& values,
                      const Tensor& rows, const Tensor& entries, const Ints& kernel,
                      const Ints& stride, const Ints& padding, const Ints& dilation, bool relu,
                      bool pool) {
  STD_TORCH_CHECK(x.dim() == 4, "x: wanted (samples, channels, rows, columns)");
  args.storage = storage_of(x);
  STD_TORCH_CHECK(args.storage == Storage::f32 || args.storage == Storage::f64,
                  "sparse_conv2d: wanted float32 or float64");
  STD_TORCH_CHECK(
      kernel.size() == 2 && stride.size() == 2 && dilation.size() == 2 && padding.size() == 4,
      "sparse_conv2d: wanted 2 numbers for kernel, stride and dilation, 4 for padding");
  args.samples = x.size(0), args.in_channels = x.size(1);
  args.out_channels = rows.numel() - 1;
  STD_TORCH_CHECK(args.out_channels >= 0, "rows: wanted one number more than output channels");
  for (int d = 0; d < 2; ++d) {
    STD_TORCH_CHECK(kernel[d] >= 1 && stride[d] >= 1 && dilation[d] >= 1 && padding[2 * d] >= 0 &&
                        padding[2 * d + 1] >= 0,
                    "sparse_conv2d: kernel, stride, dilation or padding too small");
    args.in_size[d] = x.size(2 + d);
    args.kernel[d] = kernel[d], args.stride[d] = stride[d];
    args.padding[d] = padding[2 * d], args.dilation[d] = dilation[d];
    const int64_t room =
        args.in_size[d] + padding[2 * d] + padding[2 * d + 1] - dilation[d] * (kernel[d] - 1) - 1;
    STD_TORCH_CHECK(room >= 0, "x: smaller than the kernel");
    args.out_size[d] = room / stride[d] + 1;
    args.result_size[d] = pool ? args.out_size[d] / 2 : args.out_size[d];
  }
  args.relu = relu, args.pool = pool;
  const int64_t nnz = values.numel();
  check_operand(values, "values", x, {nnz});
  args.x = x.data_ptr();
  set_strides(args.x_stride, x);
  args.values = values.data_ptr();
  args.rows = indices_of(rows, "rows", args.out_channels + 1);
  args.entries = indices_of(entries, "entries", 2 * nnz);
  STD_TORCH_CHECK(args.rows[0] == 0 && args.rows[args.out_channels] == nnz,
                  "rows: wanted 0 first and the number of values last");
}

static Parallel parallel_for(const SparseLayerArgs& args, int64_t nnz) {
  return parallel_for_work(args.samples * args.out_size[0] * args.out_size[1] *
                           (nnz + args.out_channels));
}

// The transposed pattern and groups (which the entries contain) are only for the autograd formula,
// which sees the inputs of the operator.
std::tuple<Tensor, Tensor> sparse_conv2d_cpu(const Tensor& x, const Tensor& values,
                                             const std::optional<Tensor>& bias, const Tensor& rows,
                                             const Tensor& entries, const Tensor&, const Tensor&,
                                             const Tensor&, Ints kernel, Ints stride, Ints padding,
                                             Ints dilation, int64_t, bool relu, bool pool) {
  SparseForwardArgs args{};
  set_layer(args, x, values, rows, entries, kernel, stride, padding, dilation, relu, pool);
  check_operand(bias, "bias", x, {args.out_channels});
  const std::initializer_list<int64_t> size{args.out_channels, args.result_size[0],
                                            args.result_size[1], args.samples};
  Tensor output = empty_beside(x, size);
  Tensor places = empty_of(x, pool ? size : std::initializer_list<int64_t>{0}, ScalarType::Byte);
  if (output.numel() == 0) return {output, places};
  args.bias = data_or_null(bias);
  args.output = output.data_ptr();
  if (pool) args.places = static_cast<uint8_t*>(places.data_ptr());
  kernels().sparse_forward(args, parallel_for(args, values.numel()));
  return {output, places};
}

std::tuple<Tensor, Tensor, Tensor> sparse_conv2d_backward_cpu(
    const Tensor& grad, const std::optional<Tensor>& output, const std::optional<Tensor>& places,
    const Tensor& x, const Tensor& values, const Tensor& rows, const Tensor& entries,
    const Tensor& rows_t, const Tensor& entries_t, const Tensor& order_t, Ints kernel, Ints stride,
    Ints padding, Ints dilation, int64_t wanted) {
  SparseBackwardArgs args{};
  set_layer(args, x, values, rows, entries, kernel, stride, padding, dilation, output.has_value(),
            places.has_value());
  const int64_t nnz = values.numel();
  STD_TORCH_CHECK(grad.dim() == 4 && grad.size(0) == args.samples &&
                      grad.size(1) == args.out_channels && grad.size(2) == args.result_size[0] &&
                      grad.size(3) == args.result_size[1] &&
                      grad.scalar_type() == x.scalar_type() && grad.is_cpu(),
                  "grad: wanted the output's shape, dtype and device");
  args.grad = grad.data_ptr();
  set_strides(args.grad_stride, grad);
  const std::initializer_list<int64_t> size{args.out_channels, args.result_size[0],
                                            args.result_size[1], args.samples};
  check_operand(output, "output", x, size);
  args.output = data_or_null(output);
  if (places.has_value()) {
    STD_TORCH_CHECK(places->scalar_type() == ScalarType::Byte && places->is_contiguous() &&
                        places->is_cpu() && places->numel() == grad.numel(),
                    "places: wanted those of the forward");
    args.places = static_cast<const uint8_t*>(places->data_ptr());
  }
  if (args.relu || args.pool) {
    int64_t stride = 1;
    for (int d : {0, 3, 2, 1}) {
      STD_TORCH_CHECK(grad.stride(d) == stride || grad.size(d) == 1,
                      "grad: wanted the output's layout where a ReLU or pooling follows");
      stride *= grad.size(d);
    }
  }
  args.rows_t = indices_of(rows_t, "rows_t", stride[0] * stride[1] * args.in_channels + 1);
  args.entries_t = indices_of(entries_t, "entries_t", 2 * nnz);
  args.order_t = indices_of(order_t, "order_t", nnz);
  const auto result = [&](int bit, std::initializer_list<int64_t> size) {
    return empty_beside(x, wanted >> bit & 1 ? size : std::initializer_list<int64_t>{0});
  };
  Tensor grad_x = result(0, {args.in_channels, args.in_size[0], args.in_size[1], args.samples});
  Tensor grad_values = result(1, {nnz});
  Tensor grad_bias = result(2, {args.out_channels});
  const auto data = [](const Tensor& t) { return t.numel() ? t.data_ptr() : nullptr; };
  args.grad_x = data(grad_x);
  args.grad_values = data(grad_values), args.grad_bias = data(grad_bias);
  if (grad.numel() == 0) {
    for (const Tensor* t : {&grad_x, &grad_values, &grad_bias})
      if (t->numel())
        std::memset(t->data_ptr(), 0, t->numel() * (args.storage == Storage::f64 ? 8 : 4));
  } else {
    kernels().sparse_backward(args, parallel_for(args, nnz));
  }
  return {grad_x, grad_values, grad_bias};
}

}  // namespace bppsa

STABLE_TORCH_LIBRARY_FRAGMENT(bppsa, m) {
  m.def(
      "sparse_conv2d(Tensor x, Tensor values, Tensor? bias, Tensor rows, Tensor entries, "
      "Tensor rows_t, Tensor entries_t, Tensor order_t, int[] kernel, int[] stride, "
      "int[] padding, int[] dilation, int groups, bool relu=False, bool pool=False) "
      "-> (Tensor, Tensor)");
  m.def(
      "sparse_conv2d_backward(Tensor grad, Tensor? output, Tensor? places, Tensor x, "
      "Tensor values, Tensor rows, Tensor entries, Tensor rows_t, Tensor entries_t, "
      "Tensor order_t, int[] kernel, int[] stride, int[] padding, int[] dilation, int wanted) "
      "-> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("sparse_conv2d", TORCH_BOX(&bppsa::sparse_conv2d_cpu));
  m.impl("sparse_conv2d_backward", TORCH_BOX(&bppsa::sparse_conv2d_backward_cpu));
}
