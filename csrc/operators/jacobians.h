// Operators on sparse transposed Jacobians that run on every device: values at patterns, products
// by plans, products with vectors. (The CPU makes patterns and plans: cpu/jacobians.cpp.)
//
// Device: run(request, like, work), work the multiply-adds or numbers written.
#pragma once

#include "../requests/jacobians.h"
#include "tensors.h"

namespace bppsa {

inline Storage contiguous_storage(const Tensor& t, const char* name) {
  STD_TORCH_CHECK(t.is_contiguous(), name, ": wanted contiguous memory");
  return real_storage(t, name);
}

inline Axis axis_of(const Tensor& first, const Tensor& out, int64_t out_size, const Tensor& like) {
  return {first.numel() - 1, out_size, indices(first, "first", first.numel(), like),
          indices(out, "out", out.numel(), like)};
}

// x (planes, H, W), the axes as for window_pattern; pool_y, pool_x: kernel, stride, padding,
// dilation. Values (planes, entries of a plane).
template <class Device>
Tensor max_pool_values(const Tensor& x, const Tensor& first_y, const Tensor& out_y,
                       const Tensor& first_x, const Tensor& out_x, int64_t out_height,
                       int64_t out_width, Ints pool_y, Ints pool_x) {
  MaxPoolRequest request;
  request.storage = contiguous_storage(x, "x");
  request.y = axis_of(first_y, out_y, out_height, x);
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
  const Tensor values = result(request.values, x, {x.size(0), out_y.numel() * out_x.numel()});
  Device::run(request, x, values.numel());
  return values;
}

template <class Device>
Tensor elementwise_values(const Tensor& x, const std::string& function, double slope) {
  const Storage storage = contiguous_storage(x, "x");
  const char* const names[] = {"relu", "leaky_relu", "tanh", "sigmoid", "silu"};
  const auto found = std::find(std::begin(names), std::end(names), function);
  STD_TORCH_CHECK(found != std::end(names), "function: found '", function,
                  "', wanted 'relu', 'leaky_relu', 'tanh', 'sigmoid' or 'silu'");
  const Tensor values = torch::stable::empty_like(x);
  const ElementwiseRequest request{storage,      Elementwise(found - names), slope, x.numel(),
                                   x.data_ptr(), values.data_ptr()};
  Device::run(request, x, x.numel());
  return values;
}

// Values (entries of crow) of a weight; source, first and crow as of convolution_pattern.
template <class Device>
Tensor weight_values(const Tensor& weight, const Tensor& source, const Tensor& first,
                     const Tensor& crow, int64_t entries) {
  WeightRequest request;
  request.storage = contiguous_storage(weight, "weight");
  request.rows = first.numel(), request.n = source.numel();
  request.weight = weight.data_ptr();
  request.source = indices(source, "source", request.n, weight);
  request.first = indices(first, "first", request.rows, weight);
  request.crow = indices(crow, "crow", request.rows + 1, weight);
  STD_TORCH_CHECK(!crow.is_cpu() || request.crow[request.rows] == entries, "crow: found ",
                  crow.is_cpu() ? request.crow[request.rows] : 0, " entries, wanted ", entries);
  const Tensor values = result(request.values, weight, {entries});
  Device::run(request, weight, entries);
  return values;
}

inline CsrPattern csr_pattern(const Tensor& crow, const Tensor& col, const char* name,
                              const Tensor& like) {
  const CsrPattern pattern = {indices(crow, name, crow.numel(), like),
                              indices(col, name, col.numel(), like)};
  STD_TORCH_CHECK(
      crow.numel() >= 1 && (!crow.is_cpu() || pattern.crow[crow.numel() - 1] == col.numel()), name,
      ": crow and col do not agree");
  return pattern;
}

// values (entries) or (samples, entries) of any strides.
inline Stride stride_of(const Tensor& values, int64_t entries, int64_t batch, const char* name) {
  const int64_t dims = values.dim();
  STD_TORCH_CHECK(
      (dims == 1 || (dims == 2 && values.size(0) == batch)) && values.size(dims - 1) == entries,
      name, ": wanted values (nnz) or (batch, nnz) of the pattern");
  // Of a dimension with one place or none, torch's stride may be any number.
  if (batch == 0 || entries == 0) return {0, 1};
  return {dims == 1 || batch == 1 ? 0 : values.stride(0),
          entries == 1 ? 1 : values.stride(dims - 1)};
}

// Values of C = A B; a and b are (nnz) or (batch, nnz). crow, program and positions are those of
// fill_product, `entries` and `longest` the entries of C and of its longest row. The result is
// (nnz), or (batch, nnz) with the samples side by side in memory if `side_by_side`.
template <class Device>
Tensor multiply_csr(const Tensor& a_crow, const Tensor& a_col, const Tensor& a,
                    const Tensor& b_crow, const Tensor& b_col, const Tensor& b, const Tensor& crow,
                    const Tensor& program, const Tensor& positions, int64_t entries,
                    int64_t longest, bool b_single, bool side_by_side) {
  NumericRequest request{};
  request.storage = real_storage(a, "a");
  STD_TORCH_CHECK(b.scalar_type() == a.scalar_type() && same_device(a, b),
                  "b: wanted the dtype and device of a");
  request.a = csr_pattern(a_crow, a_col, "a", a), request.b = csr_pattern(b_crow, b_col, "b", a);
  const int64_t batch = a.dim() == 2 ? a.size(0) : b.dim() == 2 ? b.size(0) : 1;
  request.rows = crow.numel() - 1, request.batch = batch;
  STD_TORCH_CHECK(a_crow.numel() == crow.numel() && program.numel() == request.rows &&
                      program.scalar_type() == ScalarType::Long && program.is_contiguous() &&
                      positions.is_contiguous() && same_device(program, a) &&
                      same_device(positions, a),
                  "crow, program, positions: wanted those of fill_product, beside the others");
  request.crow = indices(crow, "crow", request.rows + 1, a);
  request.program = data<int64_t>(program);
  STD_TORCH_CHECK(entries >= 0 && entries <= INT32_MAX && longest >= 0 && longest <= entries &&
                      (!crow.is_cpu() || request.crow[request.rows] == entries),
                  "entries, longest: wanted the entries of crow and of its longest row");
  request.positions = result_data(positions);
  request.wide = positions.scalar_type() == ScalarType::Int;
  request.b_rows = b_crow.numel() - 1, request.b_entries = b_col.numel();
  request.entries = entries, request.longest = longest;
  request.b_single = b_single;
  request.a_values = a.data_ptr(), request.b_values = b.data_ptr();
  request.a_stride = stride_of(a, a_col.numel(), batch, "a");
  request.b_stride = stride_of(b, b_col.numel(), batch, "b");

  const bool batched = a.dim() == 2 || b.dim() == 2;
  request.side_by_side = side_by_side = side_by_side && batch > 1;
  for (const Stride& s : {request.a_stride, request.b_stride})
    STD_TORCH_CHECK(side_by_side ? s.sample <= 1 : s.entry == 1 || entries == 0,
                    "a, b: wanted samples side by side or apart, as the result");
  const Tensor values = result(request.values, a,
                               !batched       ? Sizes{entries}
                               : side_by_side ? Sizes{entries, batch}
                                              : Sizes{batch, entries});
  request.stride = side_by_side ? Stride{1, batch} : Stride{entries, 1};
  Device::run(request, a, (entries + a_col.numel()) * batch);
  return side_by_side ? torch::stable::transpose(values, 0, 1) : values;
}

// out (rows, batch) of x (cols, batch); values (nnz), or (batch, nnz) with samples side by side.
template <class Device>
Tensor apply_csr(const Tensor& crow, const Tensor& col, const Tensor& values, const Tensor& x) {
  ApplyRequest request{};
  request.storage = real_storage(x, "x");
  STD_TORCH_CHECK(values.scalar_type() == x.scalar_type() && same_device(values, x),
                  "values: wanted the dtype and device of x");
  STD_TORCH_CHECK(x.dim() == 2 && x.is_contiguous(), "x: wanted contiguous (cols, batch)");
  request.a = csr_pattern(crow, col, "crow", x);
  request.rows = crow.numel() - 1, request.entries = col.numel(), request.batch = x.size(1);
  request.values = values.data_ptr();
  request.stride = stride_of(values, request.entries, request.batch, "values");
  STD_TORCH_CHECK(request.stride.sample <= 1, "values: wanted samples side by side");
  request.x = x.data_ptr();
  const Tensor out = result(request.out, x, {request.rows, request.batch});
  if (request.batch > 0) Device::run(request, x, request.entries * request.batch);
  return out;
}

}  // namespace bppsa
