// Products of sparse matrices by fixed plans on the CPU: count, fill, multiply; and A x.
#include <algorithm>
#include <unordered_map>

#include "../jacobians/requests.h"

namespace bppsa {

namespace {

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
  args.a = pattern_of(a_crow, a_col, "a", a_crow), args.b = pattern_of(b_crow, b_col, "b", a_crow);
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
  args.a = pattern_of(a_crow, a_col, "a", a_crow), args.b = pattern_of(b_crow, b_col, "b", a_crow);
  STD_TORCH_CHECK(products.numel() == args.rows && owner.numel() == args.rows,
                  "products, owner: wanted those of count_product");
  const int32_t* size = indices(row_size, "row_size", args.rows, a_crow);
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

Tensor multiply_cpu(const Tensor& a_crow, const Tensor& a_col, const Tensor& a,
                    const Tensor& b_crow, const Tensor& b_col, const Tensor& b, const Tensor& crow,
                    const Tensor& program, const Tensor& positions, int64_t entries,
                    int64_t longest, bool b_single, bool side_by_side) {
  const auto [args, values] = multiply_request(a_crow, a_col, a, b_crow, b_col, b, crow, program,
                                               positions, entries, longest, b_single, side_by_side);
  kernels().jacobians->multiply(args, parallel_for_work((entries + a_col.numel()) * args.batch));
  return values;
}

Tensor apply_cpu(const Tensor& crow, const Tensor& col, const Tensor& values, const Tensor& x) {
  const auto [args, out] = apply_request(crow, col, values, x);
  if (args.batch > 0) {
    kernels().jacobians->apply(args, parallel_for_work(args.entries * args.batch));
  }
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
      "Tensor crow, Tensor program, Tensor positions, int entries, int longest, bool b_single, "
      "bool side_by_side) -> Tensor");
  m.def("apply_csr(Tensor crow, Tensor col, Tensor values, Tensor x) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("count_product", TORCH_BOX(&bppsa::count_product_cpu));
  m.impl("fill_product", TORCH_BOX(&bppsa::fill_product_cpu));
  m.impl("multiply_csr", TORCH_BOX(&bppsa::multiply_cpu));
  m.impl("apply_csr", TORCH_BOX(&bppsa::apply_cpu));
}
