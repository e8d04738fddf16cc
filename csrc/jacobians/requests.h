// From tensors to the structs of kernels.h, with the memory of the result, for every device.
// Python's checks have said the same in more words. What a pattern holds is trusted on a GPU: to
// look at it, the host would have to wait.
#pragma once

#include <vector>

#include "../cpu/sparse_glue.h"

namespace bppsa {

inline Storage contiguous_storage(const Tensor& t, const char* name) {
  STD_TORCH_CHECK(t.is_contiguous(), name, ": wanted contiguous memory");
  return values_storage(t, name);
}

// What a kernel is asked for, and the tensor that it fills.
template <class Args>
struct Request {
  Args args;
  Tensor result;
};

// --- values ------------------------------------------------------------------------------------

inline Axis axis_of(const Tensor& first, const Tensor& out, int64_t out_size, const Tensor& like) {
  return {first.numel() - 1, out_size, indices(first, "first", first.numel(), like),
          indices(out, "out", out.numel(), like)};
}

// x (planes, H, W), the axes as for window_pattern; pool_y, pool_x: kernel, stride, padding,
// dilation. Values (planes, entries of a plane).
inline Request<MaxPoolArgs> max_pool_request(const Tensor& x, const Tensor& first_y,
                                             const Tensor& out_y, const Tensor& first_x,
                                             const Tensor& out_x, int64_t out_height,
                                             int64_t out_width, const std::vector<int64_t>& pool_y,
                                             const std::vector<int64_t>& pool_x) {
  MaxPoolArgs args;
  args.storage = contiguous_storage(x, "x");
  args.y = axis_of(first_y, out_y, out_height, x), args.x = axis_of(first_x, out_x, out_width, x);
  STD_TORCH_CHECK(x.dim() == 3 && x.size(1) == args.y.size && x.size(2) == args.x.size &&
                      args.y.size * args.x.size <= INT32_MAX,
                  "x: wanted (planes, H, W), a plane of less than 2^31 numbers");
  STD_TORCH_CHECK(pool_y.size() == 4 && pool_x.size() == 4,
                  "pool: wanted kernel, stride, padding, dilation");
  args.planes = x.size(0);
  args.pool_y = {pool_y[0], pool_y[1], pool_y[2], pool_y[3]};
  args.pool_x = {pool_x[0], pool_x[1], pool_x[2], pool_x[3]};
  args.input = x.data_ptr();
  Tensor values = empty_beside(x, {args.planes, out_y.numel() * out_x.numel()});
  args.values = values.data_ptr();
  return {args, values};
}

inline Request<ElementwiseArgs> elementwise_request(const Tensor& x, const std::string& function,
                                                    double slope) {
  ElementwiseArgs args;
  args.storage = contiguous_storage(x, "x");
  const char* const names[] = {"relu", "leaky_relu", "tanh", "sigmoid", "silu"};
  int found = 0;
  while (found < 5 && function != names[found]) ++found;
  STD_TORCH_CHECK(found < 5, "function: found '", function,
                  "', wanted 'relu', 'leaky_relu', 'tanh', 'sigmoid' or 'silu'");
  args.function = static_cast<Elementwise>(found);
  args.slope = slope;
  args.n = x.numel();
  args.x = x.data_ptr();
  Tensor values = torch::stable::empty_like(x);
  args.values = values.data_ptr();
  return {args, values};
}

// Values (entries of crow) of a weight; source, first and crow as of convolution_pattern.
inline Request<WeightArgs> weight_request(const Tensor& weight, const Tensor& source,
                                          const Tensor& first, const Tensor& crow,
                                          int64_t entries) {
  WeightArgs args;
  args.storage = contiguous_storage(weight, "weight");
  args.rows = first.numel(), args.n = source.numel();
  args.weight = weight.data_ptr();
  args.source = indices(source, "source", args.n, weight);
  args.first = indices(first, "first", args.rows, weight);
  args.crow = indices(crow, "crow", args.rows + 1, weight);
  STD_TORCH_CHECK(!crow.is_cpu() || args.crow[args.rows] == entries, "crow: found ",
                  crow.is_cpu() ? args.crow[args.rows] : 0, " entries, wanted ", entries);
  Tensor values = empty_beside(weight, {entries});
  args.values = values.data_ptr();
  return {args, values};
}

// --- products ----------------------------------------------------------------------------------

inline Pattern pattern_of(const Tensor& crow, const Tensor& col, const char* name,
                          const Tensor& like) {
  const Pattern pattern = {indices(crow, name, crow.numel(), like),
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

inline int64_t batch_of(const Tensor& a, const Tensor& b) {
  return a.dim() == 2 ? a.size(0) : b.dim() == 2 ? b.size(0) : 1;
}

// Values of C = A B; a and b are (nnz) or (batch, nnz). crow, program and positions are those of
// fill_product, `entries` and `longest` the entries of C and of its longest row. The result is
// (nnz), or (batch, nnz) with the samples side by side in memory if `side_by_side`.
inline Request<NumericArgs> multiply_request(const Tensor& a_crow, const Tensor& a_col,
                                             const Tensor& a, const Tensor& b_crow,
                                             const Tensor& b_col, const Tensor& b,
                                             const Tensor& crow, const Tensor& program,
                                             const Tensor& positions, int64_t entries,
                                             int64_t longest, bool b_single, bool side_by_side) {
  NumericArgs args{};
  args.storage = values_storage(a, "a");
  STD_TORCH_CHECK(b.scalar_type() == a.scalar_type() && same_device(a, b),
                  "b: wanted the dtype and device of a");
  args.a = pattern_of(a_crow, a_col, "a", a), args.b = pattern_of(b_crow, b_col, "b", a);
  args.rows = crow.numel() - 1, args.batch = batch_of(a, b);
  STD_TORCH_CHECK(a_crow.numel() == crow.numel() && program.numel() == args.rows &&
                      program.scalar_type() == ScalarType::Long && program.is_contiguous() &&
                      positions.is_contiguous() && same_device(program, a) &&
                      same_device(positions, a),
                  "crow, program, positions: wanted those of fill_product, beside the others");
  args.crow = indices(crow, "crow", args.rows + 1, a), args.program = data<int64_t>(program);
  STD_TORCH_CHECK(entries >= 0 && entries <= INT32_MAX && longest >= 0 && longest <= entries &&
                      (!crow.is_cpu() || args.crow[args.rows] == entries),
                  "entries, longest: wanted the entries of crow and of its longest row");
  args.positions = positions.numel() > 0 ? positions.data_ptr() : nullptr;
  args.wide = positions.scalar_type() == ScalarType::Int;
  args.b_rows = b_crow.numel() - 1, args.b_entries = b_col.numel();
  args.entries = entries, args.longest = longest;
  args.b_single = b_single;
  args.a_values = a.data_ptr(), args.b_values = b.data_ptr();
  args.a_stride = stride_of(a, a_col.numel(), args.batch, "a");
  args.b_stride = stride_of(b, b_col.numel(), args.batch, "b");

  const bool batched = a.dim() == 2 || b.dim() == 2;
  side_by_side = side_by_side && args.batch > 1;
  const auto fits = [&](const Stride& s) {
    return side_by_side ? s.sample <= 1 : s.entry == 1 || entries == 0;
  };
  STD_TORCH_CHECK(fits(args.a_stride) && fits(args.b_stride),
                  "a, b: wanted samples side by side or apart, as the result");
  Tensor values = !batched       ? empty_beside(a, {entries})
                  : side_by_side ? empty_beside(a, {entries, args.batch})
                                 : empty_beside(a, {args.batch, entries});
  args.values = values.data_ptr();
  args.side_by_side = side_by_side;
  args.stride = side_by_side ? Stride{1, args.batch} : Stride{entries, 1};
  return {args, side_by_side ? torch::stable::transpose(values, 0, 1) : values};
}

// out (rows, batch) of x (cols, batch); values (nnz), or (batch, nnz) with samples side by side.
inline Request<ApplyArgs> apply_request(const Tensor& crow, const Tensor& col, const Tensor& values,
                                        const Tensor& x) {
  ApplyArgs args{};
  args.storage = values_storage(x, "x");
  STD_TORCH_CHECK(values.scalar_type() == x.scalar_type() && same_device(values, x),
                  "values: wanted the dtype and device of x");
  STD_TORCH_CHECK(x.dim() == 2 && x.is_contiguous(), "x: wanted contiguous (cols, batch)");
  args.a = pattern_of(crow, col, "crow", x);
  args.rows = crow.numel() - 1, args.entries = col.numel(), args.batch = x.size(1);
  args.values = values.data_ptr();
  args.stride = stride_of(values, args.entries, args.batch, "values");
  STD_TORCH_CHECK(args.stride.sample <= 1, "values: wanted samples side by side");
  args.x = x.data_ptr();
  Tensor out = empty_beside(x, {args.rows, args.batch});
  args.out = out.data_ptr();
  return {args, out};
}

}  // namespace bppsa
