// Requests of products of sparse matrices, with the memory of the result. What a pattern holds is
// trusted on a GPU: to look at it, the host would have to wait.
#pragma once

#include "../jacobians.h"
#include "tensors.h"

namespace bppsa {

inline CsrPattern csr_pattern(const Tensor& crow, const Tensor& col, const char* name,
                              const Tensor& like) {
  const CsrPattern pattern = {indices(crow, name, crow.numel(), like),
                              indices(col, name, col.numel(), like)};
  STD_TORCH_CHECK(
      crow.numel() >= 1 && (!crow.is_cpu() || pattern.crow[crow.numel() - 1] == col.numel()), name,
      ": crow and col do not agree");
  return pattern;
}

// Of a pattern on the CPU, that rows follow each other and columns lie below `cols`.
inline void check_columns(const CsrPattern& pattern, int64_t rows, int64_t cols, const char* name) {
  for (int64_t i = 0; i < rows; ++i)
    STD_TORCH_CHECK(pattern.crow[i] >= 0 && pattern.crow[i] <= pattern.crow[i + 1], name,
                    ": crow descends at row ", i);
  for (int64_t e = 0; e < pattern.crow[rows]; ++e)
    STD_TORCH_CHECK(pattern.col[e] >= 0 && pattern.col[e] < cols, name, ": found column ",
                    pattern.col[e], ", wanted less than ", cols);
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
inline Asked<NumericRequest> multiply_request(const Tensor& a_crow, const Tensor& a_col,
                                              const Tensor& a, const Tensor& b_crow,
                                              const Tensor& b_col, const Tensor& b,
                                              const Tensor& crow, const Tensor& program,
                                              const Tensor& positions, int64_t entries,
                                              int64_t longest, bool b_single, bool side_by_side) {
  NumericRequest request{};
  request.storage = values_storage(a, "a");
  STD_TORCH_CHECK(b.scalar_type() == a.scalar_type() && same_device(a, b),
                  "b: wanted the dtype and device of a");
  request.a = csr_pattern(a_crow, a_col, "a", a), request.b = csr_pattern(b_crow, b_col, "b", a);
  request.rows = crow.numel() - 1, request.batch = batch_of(a, b);
  STD_TORCH_CHECK(a_crow.numel() == crow.numel() && program.numel() == request.rows &&
                      program.scalar_type() == ScalarType::Long && program.is_contiguous() &&
                      positions.is_contiguous() && same_device(program, a) &&
                      same_device(positions, a),
                  "crow, program, positions: wanted those of fill_product, beside the others");
  request.crow = indices(crow, "crow", request.rows + 1, a),
  request.program = data<int64_t>(program);
  STD_TORCH_CHECK(entries >= 0 && entries <= INT32_MAX && longest >= 0 && longest <= entries &&
                      (!crow.is_cpu() || request.crow[request.rows] == entries),
                  "entries, longest: wanted the entries of crow and of its longest row");
  request.positions = positions.numel() > 0 ? positions.data_ptr() : nullptr;
  request.wide = positions.scalar_type() == ScalarType::Int;
  request.b_rows = b_crow.numel() - 1, request.b_entries = b_col.numel();
  request.entries = entries, request.longest = longest;
  request.b_single = b_single;
  request.a_values = a.data_ptr(), request.b_values = b.data_ptr();
  request.a_stride = stride_of(a, a_col.numel(), request.batch, "a");
  request.b_stride = stride_of(b, b_col.numel(), request.batch, "b");

  const bool batched = a.dim() == 2 || b.dim() == 2;
  side_by_side = side_by_side && request.batch > 1;
  const auto fits = [&](const Stride& s) {
    return side_by_side ? s.sample <= 1 : s.entry == 1 || entries == 0;
  };
  STD_TORCH_CHECK(fits(request.a_stride) && fits(request.b_stride),
                  "a, b: wanted samples side by side or apart, as the result");
  Tensor values = !batched       ? empty_beside(a, {entries})
                  : side_by_side ? empty_beside(a, {entries, request.batch})
                                 : empty_beside(a, {request.batch, entries});
  request.values = values.data_ptr();
  request.side_by_side = side_by_side;
  request.stride = side_by_side ? Stride{1, request.batch} : Stride{entries, 1};
  return {request, side_by_side ? torch::stable::transpose(values, 0, 1) : values};
}

// out (rows, batch) of x (cols, batch); values (nnz), or (batch, nnz) with samples side by side.
inline Asked<ApplyRequest> apply_request(const Tensor& crow, const Tensor& col,
                                         const Tensor& values, const Tensor& x) {
  ApplyRequest request{};
  request.storage = values_storage(x, "x");
  STD_TORCH_CHECK(values.scalar_type() == x.scalar_type() && same_device(values, x),
                  "values: wanted the dtype and device of x");
  STD_TORCH_CHECK(x.dim() == 2 && x.is_contiguous(), "x: wanted contiguous (cols, batch)");
  request.a = csr_pattern(crow, col, "crow", x);
  request.rows = crow.numel() - 1, request.entries = col.numel(), request.batch = x.size(1);
  request.values = values.data_ptr();
  request.stride = stride_of(values, request.entries, request.batch, "values");
  STD_TORCH_CHECK(request.stride.sample <= 1, "values: wanted samples side by side");
  request.x = x.data_ptr();
  Tensor out = empty_beside(x, {request.rows, request.batch});
  request.out = out.data_ptr();
  return {request, out};
}

}  // namespace bppsa
