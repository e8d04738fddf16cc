// Requests of values of transposed Jacobians, with the memory of the result. What a pattern holds
// is trusted on a GPU: to look at it, the host would have to wait.
#pragma once

#include <string>

#include "../jacobians.h"
#include "tensors.h"

namespace bppsa {

inline Storage contiguous_storage(const Tensor& t, const char* name) {
  STD_TORCH_CHECK(t.is_contiguous(), name, ": wanted contiguous memory");
  return values_storage(t, name);
}

inline Axis axis_of(const Tensor& first, const Tensor& out, int64_t out_size, const Tensor& like) {
  return {first.numel() - 1, out_size, indices(first, "first", first.numel(), like),
          indices(out, "out", out.numel(), like)};
}

// x (planes, H, W), the axes as for window_pattern; pool_y, pool_x: kernel, stride, padding,
// dilation. Values (planes, entries of a plane).
inline Asked<MaxPoolRequest> max_pool_request(const Tensor& x, const Tensor& first_y,
                                              const Tensor& out_y, const Tensor& first_x,
                                              const Tensor& out_x, int64_t out_height,
                                              int64_t out_width, const Ints& pool_y,
                                              const Ints& pool_x) {
  MaxPoolRequest request;
  request.storage = contiguous_storage(x, "x");
  request.y = axis_of(first_y, out_y, out_height, x),
  request.x = axis_of(first_x, out_x, out_width, x);
  STD_TORCH_CHECK(x.dim() == 3 && x.size(1) == request.y.size && x.size(2) == request.x.size &&
                      request.y.size * request.x.size <= INT32_MAX,
                  "x: wanted (planes, H, W), a plane of less than 2^31 numbers");
  STD_TORCH_CHECK(pool_y.size() == 4 && pool_x.size() == 4,
                  "pool: wanted kernel, stride, padding, dilation");
  request.planes = x.size(0);
  request.pool_y = {pool_y[0], pool_y[1], pool_y[2], pool_y[3]};
  request.pool_x = {pool_x[0], pool_x[1], pool_x[2], pool_x[3]};
  request.input = x.data_ptr();
  Tensor values = empty_beside(x, {request.planes, out_y.numel() * out_x.numel()});
  request.values = values.data_ptr();
  return {request, values};
}

inline Asked<ElementwiseRequest> elementwise_request(const Tensor& x, const std::string& function,
                                                     double slope) {
  ElementwiseRequest request;
  request.storage = contiguous_storage(x, "x");
  const char* const names[] = {"relu", "leaky_relu", "tanh", "sigmoid", "silu"};
  int found = 0;
  while (found < 5 && function != names[found]) ++found;
  STD_TORCH_CHECK(found < 5, "function: found '", function,
                  "', wanted 'relu', 'leaky_relu', 'tanh', 'sigmoid' or 'silu'");
  request.function = static_cast<Elementwise>(found);
  request.slope = slope;
  request.n = x.numel();
  request.x = x.data_ptr();
  Tensor values = torch::stable::empty_like(x);
  request.values = values.data_ptr();
  return {request, values};
}

// Values (entries of crow) of a weight; source, first and crow as of convolution_pattern.
inline Asked<WeightRequest> weight_request(const Tensor& weight, const Tensor& source,
                                           const Tensor& first, const Tensor& crow,
                                           int64_t entries) {
  WeightRequest request;
  request.storage = contiguous_storage(weight, "weight");
  request.rows = first.numel(), request.n = source.numel();
  request.weight = weight.data_ptr();
  request.source = indices(source, "source", request.n, weight);
  request.first = indices(first, "first", request.rows, weight);
  request.crow = indices(crow, "crow", request.rows + 1, weight);
  STD_TORCH_CHECK(!crow.is_cpu() || request.crow[request.rows] == entries, "crow: found ",
                  crow.is_cpu() ? request.crow[request.rows] : 0, " entries, wanted ", entries);
  Tensor values = empty_beside(weight, {entries});
  request.values = values.data_ptr();
  return {request, values};
}

}  // namespace bppsa
