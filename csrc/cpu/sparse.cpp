// bppsa::sparse_conv2d and its backward on the CPU: a layer with few weights; bppsa::take_surviving
// and bppsa::put_surviving: between a dense weight and the values of its surviving entries.
#include "../requests/sparse.h"

#include "../operators/tensors.h"
#include "crew.h"
#include "levels/table.h"

namespace bppsa::cpu {
namespace {

// kernel, stride, dilation: rows, columns. padding: top, bottom, left, right.
struct Geometry {
  const Ints &kernel, &stride, &padding, &dilation;
};

void set_geometry(SparseConvRequest& request, const Tensor& x, const Geometry& of) {
  const auto& [kernel, stride, padding, dilation] = of;
  STD_TORCH_CHECK(
      kernel.size() == 2 && stride.size() == 2 && dilation.size() == 2 && padding.size() == 4,
      "sparse_conv2d: wanted 2 numbers for kernel, stride and dilation, 4 for padding");
  for (int d = 0; d < 2; ++d) {
    STD_TORCH_CHECK(kernel[d] >= 1 && stride[d] >= 1 && dilation[d] >= 1 && padding[2 * d] >= 0 &&
                        padding[2 * d + 1] >= 0,
                    "sparse_conv2d: kernel, stride, dilation or padding too small");
    request.in_size[d] = x.size(2 + d);
    request.kernel[d] = kernel[d], request.stride[d] = stride[d];
    request.padding[d] = padding[2 * d], request.dilation[d] = dilation[d];
    const int64_t room = request.in_size[d] + padding[2 * d] + padding[2 * d + 1] -
                         dilation[d] * (kernel[d] - 1) - 1;
    STD_TORCH_CHECK(room >= 0, "x: smaller than the kernel");
    request.out_size[d] = room / stride[d] + 1;
    request.result_size[d] = request.pool ? request.out_size[d] / 2 : request.out_size[d];
  }
}

// That the pattern's rows follow each other, and read channels and taps that exist.
void check_survivors(const SparseConvRequest& request) {
  check_ascending(request.rows, request.out_channels + 1, false, "rows");
  const int64_t taps = request.kernel[0] * request.kernel[1];
  for (int64_t e = 0; e < request.rows[request.out_channels]; ++e) {
    const int32_t channel = request.entries[2 * e], tap = request.entries[2 * e + 1];
    STD_TORCH_CHECK(channel >= 0 && channel < request.in_channels && tap >= 0 && tap < taps,
                    "entries: found channel ", channel, " and tap ", tap, ", wanted less than ",
                    request.in_channels, " and ", taps);
  }
}

// What forward and backward have in common. The pattern is trusted:
// bppsa_lightning.ops.SparsePattern makes it.
template <class Request>
Request conv_request(const Tensor& x, const Tensor& values, const Tensor& rows,
                     const Tensor& entries, const Geometry& geometry, bool relu, bool pool) {
  STD_TORCH_CHECK(x.dim() == 4, "x: wanted (samples, channels, rows, columns)");
  Request request{};
  request.storage = real_storage(x, "sparse_conv2d: x");
  request.relu = relu, request.pool = pool;
  request.samples = x.size(0), request.in_channels = x.size(1);
  request.out_channels = rows.numel() - 1;
  STD_TORCH_CHECK(request.out_channels >= 0, "rows: wanted one number more than output channels");
  set_geometry(request, x, geometry);
  const int64_t nnz = values.numel();
  request.values = operand(values, "values", x, {nnz});
  request.x = x.data_ptr();
  set_strides(request.x_stride, x);
  request.rows = indices(rows, "rows", request.out_channels + 1, x);
  request.entries = indices(entries, "entries", 2 * nnz, x);
  STD_TORCH_CHECK(request.rows[0] == 0 && request.rows[request.out_channels] == nnz,
                  "rows: wanted 0 first and the number of values last");
  if (checks_patterns()) check_survivors(request);
  return request;
}

Parallel parallel_for(const SparseConvRequest& request, const Tensor& values) {
  return parallel_for_work(request.samples * request.out_size[0] * request.out_size[1] *
                           (values.numel() + request.out_channels));
}

// Places below `limit`, that of a weight or a size. They ascend: trusted, see tensors.h.
const int64_t* index_of(const Tensor& index, int64_t limit, const char* of) {
  STD_TORCH_CHECK(index.dim() == 1 && index.is_contiguous() && index.is_cpu() &&
                      index.scalar_type() == ScalarType::Long,
                  "index: wanted one dimension of int64, contiguous, on the CPU");
  const int64_t n = index.numel();
  const auto* const at = data<const int64_t>(index);
  if (checks_patterns()) check_ascending(at, n, true, "index");
  STD_TORCH_CHECK(n == 0 || (at[0] >= 0 && at[n - 1] < limit), "index: beyond the ", of);
  return at;
}

// Calls body(pointer) with the tensor's memory as numbers of its size.
template <class Body>
void with_numbers(const Tensor& t, const Body& body) {
  if (storage_of(t) == Storage::f64) return body(static_cast<uint64_t*>(t.data_ptr()));
  STD_TORCH_CHECK(storage_of(t) == Storage::f32, "weight: wanted float32 or float64");
  body(static_cast<uint32_t*>(t.data_ptr()));
}

// Calls body(begin, end) for shares of [0, n): numbers to be copied.
template <class Body>
void for_shares(int64_t n, const Body& body) {
  const Parallel parallel = parallel_for_work(2 * n);
  parallel.run(
      parallel.threads, n, const_cast<Body*>(&body),
      [](void* of, int64_t begin, int64_t end) { (*static_cast<const Body*>(of))(begin, end); });
}

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
      x, values, rows, entries, {kernel, stride, padding, dilation}, relu, pool);
  request.bias = operand(bias, "bias", x, {request.out_channels});
  const Sizes size{request.out_channels, request.result_size[0], request.result_size[1],
                   request.samples};
  const Tensor output = result(request.output, x, size);
  const Tensor places = result(request.places, x, pool ? size : Sizes{0});
  if (!pool) request.places = nullptr;
  if (output.numel()) kernels().sparse_forward(request, parallel_for(request, values));
  return {output, places};
}

// wanted: bit k for the k-th result; others are tensors of size 0.
std::tuple<Tensor, Tensor, Tensor> sparse_conv2d_backward(
    const Tensor& grad, const Maybe& output, const Maybe& places, const Tensor& x,
    const Tensor& values, const Tensor& rows, const Tensor& entries, const Tensor& rows_t,
    const Tensor& entries_t, const Tensor& order_t, Ints kernel, Ints stride, Ints padding,
    Ints dilation, int64_t wanted) {
  auto request = conv_request<SparseBackwardRequest>(x, values, rows, entries,
                                                     {kernel, stride, padding, dilation},
                                                     output.has_value(), places.has_value());
  const int64_t samples = request.samples, channels = request.out_channels;
  const int64_t *const size = request.result_size, nnz = values.numel();
  STD_TORCH_CHECK(agrees(grad, x, {samples, channels, size[0], size[1]}),
                  "grad: wanted the output's shape, dtype and device");
  request.grad = grad.data_ptr();
  set_strides(request.grad_stride, grad);
  request.output = operand(output, "output", x, {channels, size[0], size[1], samples});
  if (places.has_value()) {
    STD_TORCH_CHECK(places->scalar_type() == ScalarType::Byte && places->is_contiguous() &&
                        same_device(*places, x) && places->numel() == grad.numel(),
                    "places: wanted those of the forward");
    request.places = data<const uint8_t>(*places);
  }
  if (request.relu || request.pool) {
    int64_t stride = 1;
    for (int d : {0, 3, 2, 1}) {
      STD_TORCH_CHECK(grad.stride(d) == stride || grad.size(d) == 1 || grad.numel() == 0,
                      "grad: wanted the output's layout where a ReLU or pooling follows");
      stride *= grad.size(d);
    }
  }
  const int64_t phases = request.stride[0] * request.stride[1];
  request.rows_t = indices(rows_t, "rows_t", phases * request.in_channels + 1, x);
  request.entries_t = indices(entries_t, "entries_t", 2 * nnz, x);
  request.order_t = indices(order_t, "order_t", nnz, x);
  int bit = 0;
  const auto wanted_result = [&](void*& at, Sizes size) {
    Tensor t = empty_beside(x, wanted >> bit++ & 1 ? size : Sizes{0});
    at = result_data(t);
    if (at && grad.numel() == 0) std::memset(at, 0, t.numel() * bytes_of(request.storage));
    return t;
  };
  const std::tuple results{
      wanted_result(request.grad_x,
                    {request.in_channels, request.in_size[0], request.in_size[1], samples}),
      wanted_result(request.grad_values, {nnz}), wanted_result(request.grad_bias, {channels})};
  if (grad.numel()) kernels().sparse_backward(request, parallel_for(request, values));
  return results;
}

Tensor take_surviving(const Tensor& weight, const Tensor& index) {
  STD_TORCH_CHECK(weight.is_contiguous(), "weight: wanted contiguous");
  const int64_t* at = index_of(index, weight.numel(), "weight");
  const int64_t n = index.numel();
  Tensor values = empty_beside(weight, {n});
  with_numbers(weight, [&](auto* from) {
    auto* to = static_cast<decltype(from)>(values.data_ptr());
    for_shares(n, [&](int64_t begin, int64_t end) {
      for (int64_t e = begin; e < end; ++e) to[e] = from[at[e]];
    });
  });
  return values;
}

// A block is cleared and filled while it is in the first-level cache.
Tensor put_surviving(const Tensor& values, const Tensor& index, int64_t size) {
  const int64_t* at = index_of(index, size, "size");
  const int64_t n = index.numel();
  operand(values, "values", values, {n});
  constexpr int64_t kBlock = 1 << 12;
  Tensor weight = empty_beside(values, {size});
  with_numbers(values, [&](const auto* from) {
    auto* to =
        static_cast<std::remove_const_t<std::remove_pointer_t<decltype(from)>>*>(weight.data_ptr());
    for_shares(size, [&](int64_t begin, int64_t end) {
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
  m.impl("take_surviving", TORCH_BOX(&bppsa::cpu::take_surviving));
  m.impl("put_surviving", TORCH_BOX(&bppsa::cpu::put_surviving));
}
