// Requests of bppsa::sparse_conv2d and bppsa::sparse_conv2d_backward: a layer with few weights.
//
// The pattern (requests/sparse_conv.h) is trusted: bppsa_lightning.ops.SparsePattern makes it.
#pragma once

#include "../sparse_conv.h"
#include "tensors.h"

namespace bppsa {

inline void set_strides(int64_t (&stride)[4], const Tensor& t) {
  for (int d = 0; d < 4; ++d) stride[d] = t.stride(d);
}

struct ConvTensors {
  const Tensor &x, &values, &rows, &entries;
};

// kernel, stride, dilation: rows, columns. padding: top, bottom, left, right.
struct ConvGeometry {
  const Ints &kernel, &stride, &padding, &dilation;
};

inline void set_geometry(SparseConvRequest& request, const Tensor& x, const ConvGeometry& of) {
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
inline void check_survivors(const SparseConvRequest& request) {
  check_ascending(request.rows, request.out_channels + 1, false, "rows");
  const int64_t taps = request.kernel[0] * request.kernel[1];
  for (int64_t e = 0; e < request.rows[request.out_channels]; ++e) {
    const int32_t channel = request.entries[2 * e], tap = request.entries[2 * e + 1];
    STD_TORCH_CHECK(channel >= 0 && channel < request.in_channels && tap >= 0 && tap < taps,
                    "entries: found channel ", channel, " and tap ", tap, ", wanted less than ",
                    request.in_channels, " and ", taps);
  }
}

// All but results and what is particular to forward or backward.
template <class Request>
Request conv_request(const ConvTensors& in, const ConvGeometry& geometry, bool relu, bool pool) {
  const auto& [x, values, rows, entries] = in;
  STD_TORCH_CHECK(x.dim() == 4, "x: wanted (samples, channels, rows, columns)");
  Request request{};
  request.storage = values_storage(x, "sparse_conv2d: x");
  request.relu = relu, request.pool = pool;
  request.samples = x.size(0), request.in_channels = x.size(1);
  request.out_channels = rows.numel() - 1;
  STD_TORCH_CHECK(request.out_channels >= 0, "rows: wanted one number more than output channels");
  set_geometry(request, x, geometry);
  const int64_t nnz = values.numel();
  check_operand(values, "values", x, {nnz});
  request.x = x.data_ptr();
  set_strides(request.x_stride, x);
  request.values = values.data_ptr();
  request.rows = indices(rows, "rows", request.out_channels + 1, x);
  request.entries = indices(entries, "entries", 2 * nnz, x);
  STD_TORCH_CHECK(request.rows[0] == 0 && request.rows[request.out_channels] == nnz,
                  "rows: wanted 0 first and the number of values last");
  if (checks_patterns()) check_survivors(request);
  return request;
}

struct ConvBackwardTensors {
  const Tensor& grad;
  const Maybe &output, &places;
  const Tensor &rows_t, &entries_t, &order_t;
};

inline SparseBackwardRequest conv_backward_request(const ConvTensors& in,
                                                   const ConvBackwardTensors& back,
                                                   const ConvGeometry& geometry) {
  const auto& [grad, output, places, rows_t, entries_t, order_t] = back;
  auto request =
      conv_request<SparseBackwardRequest>(in, geometry, output.has_value(), places.has_value());
  STD_TORCH_CHECK(
      grad.dim() == 4 && grad.size(0) == request.samples && grad.size(1) == request.out_channels &&
          grad.size(2) == request.result_size[0] && grad.size(3) == request.result_size[1] &&
          grad.scalar_type() == in.x.scalar_type() && same_device(grad, in.x),
      "grad: wanted the output's shape, dtype and device");
  request.grad = grad.data_ptr();
  set_strides(request.grad_stride, grad);
  check_operand(
      output, "output", in.x,
      {request.out_channels, request.result_size[0], request.result_size[1], request.samples});
  request.output = data_or_null(output);
  if (places.has_value()) {
    STD_TORCH_CHECK(places->scalar_type() == ScalarType::Byte && places->is_contiguous() &&
                        same_device(*places, in.x) && places->numel() == grad.numel(),
                    "places: wanted those of the forward");
    request.places = data<const uint8_t>(*places);
  }
  if (request.relu || request.pool) {
    int64_t stride = 1;
    for (int d : {0, 3, 2, 1}) {
      STD_TORCH_CHECK(grad.stride(d) == stride || grad.size(d) == 1,
                      "grad: wanted the output's layout where a ReLU or pooling follows");
      stride *= grad.size(d);
    }
  }
  const int64_t phases = request.stride[0] * request.stride[1], nnz = in.values.numel();
  request.rows_t = indices(rows_t, "rows_t", phases * request.in_channels + 1, in.x);
  request.entries_t = indices(entries_t, "entries_t", 2 * nnz, in.x);
  request.order_t = indices(order_t, "order_t", nnz, in.x);
  return request;
}

}  // namespace bppsa
