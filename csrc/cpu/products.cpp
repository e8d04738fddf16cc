// Products of sparse matrices by fixed plans on the CPU: count, fill, multiply; and A x.
#include <algorithm>
#include <unordered_map>

#include "sparse_glue.h"

namespace bppsa {

namespace {

template <typename T>
T* data(const Tensor& t) {
  return static_cast<T*>(t.data_ptr());
}

Pattern pattern_of(const Tensor& crow, const Tensor& col, const char* name) {
  const Pattern pattern = {indices(crow, name, crow.numel()), indices(col, name, col.numel())};
  STD_TORCH_CHECK(crow.numel() >= 1 && pattern.crow[crow.numel() - 1] == col.numel(), name,
                  ": crow and col do not agree");
  return pattern;
}

// values (entries) or (samples, entries) of any strides.
Stride stride_of(const Tensor& values, int64_t entries, int64_t batch, const char* name) {
  const int64_t dims = values.dim();
  STD_TORCH_CHECK(
      (dims == 1 || (dims == 2 && values.size(0) == batch)) && values.size(dims - 1) == entries,
      name, ": wanted values (nnz) or (batch, nnz) of the pattern");
  return {dims == 1 || batch == 1 ? 0 : values.stride(0), values.stride(dims - 1)};
}

int64_t batch_of(const Tensor& a, const Tensor& b) {
  return a.dim() == 2 ? a.size(0) : b.dim() == 2 ? b.size(0) : 1;
}

// The first row whose program each row shares, -1 for rows in order. A hash is only a guess: the
// fill compares.
int64_t share_programs(int64_t rows, const int32_t* size, const int64_t* products,
                       const uint64_t* hash, const uint8_t* in_order, int64_t* owner) {
  std::unordered_map<uint64_t, int64_t> first;
  int64_t own_products = 0;
  for (int64_t i = 0; i < rows; ++i) {
    if (in_order[i]) {
      owner[i] = -1;
      continue;
    }
    const auto [found, is_new] = first.try_emplace(hash[i], i);
    const int64_t o = found->second;
    owner[i] = products[o] == products[i] && size[o] == size[i] ? o : i;
    if (owner[i] == i) own_products += products[i];
  }
  return own_products;
}

}  // namespace

// Of each row of C = A B: entries (int32), products (int64), the row whose program it shares
// (int64). Sizes (int64): entries, products, products of programs of their own, the longest row.
std::tuple<Tensor, Tensor, Tensor, Tensor> count_product_cpu(const Tensor& a_crow,
                                                             const Tensor& a_col,
                                                             const Tensor& b_crow,
                                                             const Tensor& b_col, int64_t cols) {
  SymbolicArgs args{};
  args.rows = a_crow.numel() - 1, args.cols = cols;
  args.a = pattern_of(a_crow, a_col, "a"), args.b = pattern_of(b_crow, b_col, "b");
  Tensor row_size = empty_of(a_crow, {args.rows}, ScalarType::Int);
  Tensor products = empty_of(a_crow, {args.rows}, ScalarType::Long);
  Tensor owner = empty_of(a_crow, {args.rows}, ScalarType::Long);
  Tensor hash = empty_of(a_crow, {args.rows}, ScalarType::Long);
  Tensor in_order = empty_of(a_crow, {args.rows}, ScalarType::Byte);
  args.row_size = data<int32_t>(row_size), args.products = data<int64_t>(products);
  args.hash = data<uint64_t>(hash), args.in_order = data<uint8_t>(in_order);
  kernels().jacobians->count_product(args, parallel_for_work(a_col.numel() * 8));

  Tensor sizes = empty_of(a_crow, {4}, ScalarType::Long);
  int64_t* size = data<int64_t>(sizes);
  size[0] = size[1] = size[3] = 0;
  for (int64_t i = 0; i < args.rows; ++i) {
    size[0] += args.row_size[i], size[1] += args.products[i];
    size[3] = std::max<int64_t>(size[3], args.row_size[i]);
  }
  size[2] = share_programs(args.rows, args.row_size, args.products, args.hash, args.in_order,
                           data<int64_t>(owner));
  return {row_size, products, owner, sizes};
}

// From what count_product returned: crow and col of C (int32), the program of each row (int64) and
// the programs' positions (16 bits, or 32 where a row has more than 65536 entries).
std::tuple<Tensor, Tensor, Tensor, Tensor> fill_product_cpu(
    const Tensor& a_crow, const Tensor& a_col, const Tensor& b_crow, const Tensor& b_col,
    int64_t cols, const Tensor& row_size, const Tensor& products, const Tensor& owner) {
  SymbolicArgs args{};
  args.rows = a_crow.numel() - 1, args.cols = cols;
  args.a = pattern_of(a_crow, a_col, "a"), args.b = pattern_of(b_crow, b_col, "b");
  STD_TORCH_CHECK(products.numel() == args.rows && owner.numel() == args.rows,
                  "products, owner: wanted those of count_product");
  const int32_t* size = indices(row_size, "row_size", args.rows);
  const auto *product_count = data<int64_t>(products), *owners = data<int64_t>(owner);

  Tensor crow = empty_of(a_crow, {args.rows + 1}, ScalarType::Int);
  Tensor program = empty_of(a_crow, {args.rows}, ScalarType::Long);
  Tensor writes = empty_of(a_crow, {args.rows}, ScalarType::Byte);
  Tensor differs = empty_of(a_crow, {args.rows}, ScalarType::Byte);
  auto* offsets = data<int32_t>(crow);
  int64_t entries = 0;
  int32_t longest = 0;
  for (int64_t i = 0; i < args.rows; ++i) {
    offsets[i] = int32_t(entries);
    entries += size[i], longest = std::max(longest, size[i]);
  }
  STD_TORCH_CHECK(entries <= INT32_MAX, "the product has more than 2^31 - 1 entries");
  offsets[args.rows] = int32_t(entries);
  Tensor col = empty_of(a_crow, {entries}, ScalarType::Int);
  args.crow = offsets, args.col = data<int32_t>(col);
  args.program = data<int64_t>(program), args.writes = data<uint8_t>(writes);
  args.differs = data<uint8_t>(differs);
  args.wide = longest > 65536;

  const Parallel parallel = parallel_for_work(a_col.numel() * 8);
  for (const bool sharing : {true, false}) {
    int64_t positions_count = 0;
    auto* at = data<int64_t>(program);
    for (int64_t i = 0; i < args.rows; ++i) {
      const bool own = owners[i] == i || (owners[i] >= 0 && !sharing);
      data<uint8_t>(writes)[i] = own;
      data<uint8_t>(differs)[i] = 0;
      at[i] = owners[i] < 0 ? -1 : own ? positions_count : at[owners[i]];
      if (own) positions_count += product_count[i];
    }
    Tensor positions =
        empty_of(a_crow, {positions_count}, args.wide ? ScalarType::Int : ScalarType::Short);
    args.positions = positions.data_ptr();
    for (const bool comparing : {false, true}) {
      args.comparing = comparing;
      kernels().jacobians->fill_product(args, parallel);
    }
    if (std::find(args.differs, args.differs + args.rows, 1) == args.differs + args.rows)
      return {crow, col, program, positions};
  }
  STD_TORCH_CHECK(false, "unreachable: a program that is not shared was compared");
}

// Values of C = A B; a and b are (nnz) or (batch, nnz). The result is (nnz), or (batch, nnz) with
// the samples side by side in memory if `side_by_side`.
Tensor multiply_cpu(const Tensor& a_crow, const Tensor& a_col, const Tensor& a,
                    const Tensor& b_crow, const Tensor& b_col, const Tensor& b, const Tensor& crow,
                    const Tensor& program, const Tensor& positions, bool b_single,
                    bool side_by_side) {
  NumericArgs args{};
  args.storage = values_storage(a, "a");
  STD_TORCH_CHECK(b.scalar_type() == a.scalar_type(), "b: wanted the dtype of a");
  args.a = pattern_of(a_crow, a_col, "a"), args.b = pattern_of(b_crow, b_col, "b");
  args.rows = crow.numel() - 1, args.batch = batch_of(a, b);
  STD_TORCH_CHECK(a_crow.numel() == crow.numel() && program.numel() == args.rows &&
                      program.scalar_type() == ScalarType::Long,
                  "crow, program: wanted those of fill_product");
  args.crow = indices(crow, "crow", args.rows + 1), args.program = data<int64_t>(program);
  args.positions = positions.data_ptr();
  args.wide = positions.scalar_type() == ScalarType::Int;
  args.b_single = b_single;
  args.a_values = a.data_ptr(), args.b_values = b.data_ptr();
  args.a_stride = stride_of(a, a_col.numel(), args.batch, "a");
  args.b_stride = stride_of(b, b_col.numel(), args.batch, "b");

  const int64_t entries = args.crow[args.rows];
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
  kernels().jacobians->multiply(args, parallel_for_work((entries + a_col.numel()) * args.batch));
  return side_by_side ? torch::stable::transpose(values, 0, 1) : values;
}

// out (rows, batch) of x (cols, batch); values (nnz), or (batch, nnz) with samples side by side.
Tensor apply_cpu(const Tensor& crow, const Tensor& col, const Tensor& values, const Tensor& x) {
  ApplyArgs args{};
  args.storage = values_storage(x, "x");
  STD_TORCH_CHECK(values.scalar_type() == x.scalar_type(), "values: wanted the dtype of x");
  STD_TORCH_CHECK(x.dim() == 2 && x.is_contiguous(), "x: wanted contiguous (cols, batch)");
  args.a = pattern_of(crow, col, "crow");
  args.rows = crow.numel() - 1, args.batch = x.size(1);
  args.values = values.data_ptr();
  args.stride = stride_of(values, col.numel(), args.batch, "values");
  STD_TORCH_CHECK(args.stride.sample <= 1, "values: wanted samples side by side");
  args.x = x.data_ptr();
  Tensor out = empty_beside(x, {args.rows, args.batch});
  args.out = out.data_ptr();
  if (args.batch > 0) kernels().jacobians->apply(args, parallel_for_work(col.numel() * args.batch));
  return out;
}

}  // namespace bppsa

STABLE_TORCH_LIBRARY_FRAGMENT(bppsa, m) {
  m.def(
      "count_product(Tensor a_crow, Tensor a_col, Tensor b_crow, Tensor b_col, int cols) -> "
      "(Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "fill_product(Tensor a_crow, Tensor a_col, Tensor b_crow, Tensor b_col, int cols, "
      "Tensor row_size, Tensor products, Tensor owner) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "multiply_csr(Tensor a_crow, Tensor a_col, Tensor a, Tensor b_crow, Tensor b_col, Tensor b, "
      "Tensor crow, Tensor program, Tensor positions, bool b_single, bool side_by_side) -> Tensor");
  m.def("apply_csr(Tensor crow, Tensor col, Tensor values, Tensor x) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("count_product", TORCH_BOX(&bppsa::count_product_cpu));
  m.impl("fill_product", TORCH_BOX(&bppsa::fill_product_cpu));
  m.impl("multiply_csr", TORCH_BOX(&bppsa::multiply_cpu));
  m.impl("apply_csr", TORCH_BOX(&bppsa::apply_cpu));
}
