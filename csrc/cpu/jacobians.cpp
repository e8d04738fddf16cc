// Sparse transposed Jacobians on the CPU: what every device does with them, and what the CPU does
// for all: patterns, and plans of products (count, fill).
#include "../operators/jacobians.h"

#include <numeric>

#include "../jacobians/convolution_classes.h"
#include "../jacobians/programs.h"
#include "crew.h"
#include "levels/table.h"

namespace bppsa::cpu {
namespace {

struct Device {
#define KERNEL(name, Request)                                            \
  static void run(const Request& request, const Tensor&, int64_t work) { \
    kernels().name(request, parallel_for_work(work));                    \
  }
  KERNEL(max_pool, MaxPoolRequest)
  KERNEL(elementwise, ElementwiseRequest)
  KERNEL(weights, WeightRequest)
  KERNEL(multiply, NumericRequest)
  KERNEL(apply, ApplyRequest)
#undef KERNEL
};

// Of a pattern, that rows follow each other and columns lie below `cols`.
void check_columns(const CsrPattern& pattern, int64_t rows, int64_t cols, const char* name) {
  for (int64_t i = 0; i < rows; ++i)
    STD_TORCH_CHECK(pattern.crow[i] >= 0 && pattern.crow[i] <= pattern.crow[i + 1], name,
                    ": crow descends at row ", i);
  for (int64_t e = 0; e < pattern.crow[rows]; ++e)
    STD_TORCH_CHECK(pattern.col[e] >= 0 && pattern.col[e] < cols, name, ": found column ",
                    pattern.col[e], ", wanted less than ", cols);
}

// size, kernel, stride, padding in front, dilation, size of the output.
AxisGeometry geometry_of(const Ints& numbers) {
  STD_TORCH_CHECK(numbers.size() == 6,
                  "axis: wanted size, kernel, stride, padding, dilation, output");
  const AxisGeometry axis{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]};
  STD_TORCH_CHECK(
      std::min({axis.size, axis.kernel, axis.stride, axis.dilation, axis.output}) >= 1 &&
          axis.padding >= 0 && std::max(axis.size, axis.output) <= INT32_MAX &&
          axis.kernel <= INT16_MAX,
      "axis: found a number out of range");
  return axis;
}

SymbolicRequest symbolic_request(const Tensor& a_crow, const Tensor& a_col, const Tensor& b_crow,
                                 const Tensor& b_col, int64_t cols) {
  SymbolicRequest request{};
  request.rows = a_crow.numel() - 1, request.cols = cols;
  request.a = csr_pattern(a_crow, a_col, "a", a_crow);
  request.b = csr_pattern(b_crow, b_col, "b", a_crow);
  // A plan is made once, so that its patterns are looked at: a column beyond writes past a bitmap.
  check_columns(request.a, request.rows, b_crow.numel() - 1, "a");
  check_columns(request.b, b_crow.numel() - 1, cols, "b");
  return request;
}

// One int64 a row, as count_product returns them.
const int64_t* of_rows(const Tensor& t, const char* name, int64_t rows, const Tensor& like) {
  STD_TORCH_CHECK(t.scalar_type() == ScalarType::Long && t.is_contiguous() && t.numel() == rows &&
                      same_device(t, like),
                  name, ": wanted that of count_product: ", rows, " contiguous int64");
  return data<int64_t>(t);
}

// A row of A meets several entries of B's rows.
Parallel parallel_for(const Tensor& a_col) { return parallel_for_work(a_col.numel() * 8); }

}  // namespace

// keep (C_out, C_in / groups, KH, KW) bool; of y and x: see geometry_of. Of the transposed Jacobian
// crow and col; source (of the templates) and first (of each row): see WeightRequest.
std::tuple<Tensor, Tensor, Tensor, Tensor> convolution_pattern(const Tensor& keep, Ints of_y,
                                                               Ints of_x, int64_t groups) {
  STD_TORCH_CHECK(keep.dim() == 4 && keep.scalar_type() == ScalarType::Bool &&
                      keep.is_contiguous() && groups >= 1 && keep.size(0) % groups == 0,
                  "keep: wanted contiguous bool (C_out, C_in / groups, KH, KW)");
  const AxisGeometry y = geometry_of(of_y), x = geometry_of(of_x);
  STD_TORCH_CHECK(keep.size(2) == y.kernel && keep.size(3) == x.kernel, "keep: wanted the kernels");
  STD_TORCH_CHECK(keep.numel() <= INT32_MAX && keep.size(0) * y.output * x.output <= INT32_MAX,
                  "keep: more weights or outputs than 32 bits can number");
  const Classes y_classes(y), x_classes(x);
  ConvolutionRequest request;
  request.channels = groups * keep.size(1), request.height = y.size, request.width = x.size;
  request.out_width = x.output;
  request.y = y_classes.view(), request.x = x_classes.view();
  std::vector<int64_t> first_tap;
  const std::vector<Tap> taps =
      taps_of({data<const bool>(keep), keep.size(0), keep.size(1), y.kernel, x.kernel, groups},
              y.output * x.output, first_tap);
  request.first_tap = first_tap.data(), request.taps = taps.data();

  const int64_t templates = request.channels * request.y.classes * request.x.classes;
  std::vector<int32_t> size(templates), start(templates);
  request.size = size.data(), request.start = start.data();
  kernels().count_templates(request, parallel_for_work(int64_t(taps.size())));
  const int64_t rows = request.channels * request.height * request.width;
  int32_t* begin;
  const Tensor crow = result(begin, keep, {rows + 1});
  request.crow = begin;
  STD_TORCH_CHECK(begin_rows(request, begin), "the Jacobian has more than 2^31 - 1 entries");
  std::exclusive_scan(size.begin(), size.end(), start.begin(), 0);
  const int64_t n = templates ? int64_t(start.back()) + size.back() : 0;
  std::vector<int32_t> column(n);
  request.column = column.data();
  const Tensor source = result(request.source, keep, {n});
  const Tensor first = result(request.first, keep, {rows});
  const Tensor col = result(request.col, keep, {begin[rows]});
  kernels().fill_templates(request, parallel_for_work(n));
  kernels().fill_convolution(request, parallel_for_work(col.numel()));
  return {crow, col, source, first};
}

// The outputs that read each input of a pooling's axis: see Axis. `like` lies on the CPU.
std::tuple<Tensor, Tensor> pooling_axis(const Tensor& like, Ints geometry) {
  const AxisGeometry axis = geometry_of(geometry);
  std::vector<int32_t> readers;
  int32_t *begin, *reader_of;
  const Tensor first = result(begin, like, {axis.size + 1});
  for (int64_t i = 0; i < axis.size; ++i) {
    begin[i] = int32_t(readers.size());
    STD_TORCH_CHECK(int64_t(readers.size()) <= INT32_MAX - axis.kernel,
                    "axis: read more than 2^31 - 1 times");
    for (int64_t k = axis.kernel - 1; k >= 0; --k)
      if (const int32_t reader = axis.reader(i, k); reader >= 0) readers.push_back(reader);
  }
  begin[axis.size] = int32_t(readers.size());
  const Tensor out = result(reader_of, like, {begin[axis.size]});
  std::copy(readers.begin(), readers.end(), reader_of);
  return {first, out};
}

// first_y (H + 1), out_y: the outputs that read each y; likewise x.
std::tuple<Tensor, Tensor> window_pattern(const Tensor& first_y, const Tensor& out_y,
                                          const Tensor& first_x, const Tensor& out_x,
                                          int64_t channels, int64_t out_height, int64_t out_width) {
  WindowRequest request;
  request.channels = channels;
  request.y = axis_of(first_y, out_y, out_height, first_y);
  request.x = axis_of(first_x, out_x, out_width, first_y);
  const int64_t rows = channels * request.y.size * request.x.size;
  const int64_t entries = channels * out_y.numel() * out_x.numel();
  STD_TORCH_CHECK(entries <= INT32_MAX && channels * out_height * out_width <= INT32_MAX,
                  "the Jacobian has more than 2^31 - 1 entries");
  const Tensor crow = result(request.crow, first_y, {rows + 1});
  const Tensor col = result(request.col, first_y, {entries});
  kernels().fill_windows(request, parallel_for_work(entries));
  return {crow, col};
}

// Of each row of C = A B: entries (int32), products (int64), the row whose program it shares
// (int64). Sizes (int64): entries, products, products of programs of their own, the longest row.
std::tuple<Tensor, Tensor, Tensor, Tensor> count_product(const Tensor& a_crow, const Tensor& a_col,
                                                         const Tensor& b_crow, const Tensor& b_col,
                                                         int64_t cols) {
  SymbolicRequest request = symbolic_request(a_crow, a_col, b_crow, b_col, cols);
  const int64_t rows = request.rows;
  int64_t *first_like, *size;
  const Tensor row_size = result(request.row_size, a_crow, {rows});
  const Tensor products = result(request.products, a_crow, {rows});
  const Tensor owner = result(first_like, a_crow, {rows}), sizes = result(size, a_crow, {4});
  std::vector<uint64_t> hash(rows);
  std::vector<uint8_t> in_order(rows);
  request.hash = hash.data(), request.in_order = in_order.data();
  kernels().count_product(request, parallel_for(a_col));

  size[0] = size[1] = size[3] = 0;
  for (int64_t i = 0; i < rows; ++i) {
    size[0] += request.row_size[i], size[1] += request.products[i];
    size[3] = std::max<int64_t>(size[3], request.row_size[i]);
  }
  size[2] = share_programs(request, first_like);
  return {row_size, products, owner, sizes};
}

// From what count_product returned: crow and col of C (int32), the program of each row (int64) and
// the programs' positions (16 bits, or 32 where a row has more than 65536 entries).
std::tuple<Tensor, Tensor, Tensor, Tensor> fill_product(const Tensor& a_crow, const Tensor& a_col,
                                                        const Tensor& b_crow, const Tensor& b_col,
                                                        int64_t cols, const Tensor& row_size,
                                                        const Tensor& products,
                                                        const Tensor& owner) {
  SymbolicRequest request = symbolic_request(a_crow, a_col, b_crow, b_col, cols);
  const int64_t rows = request.rows;
  const int64_t* const length = of_rows(products, "products", rows, a_crow);
  const int64_t* const first_like = of_rows(owner, "owner", rows, a_crow);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t o = first_like[i];
    STD_TORCH_CHECK(o >= -1 && o <= i && (o < 0 || first_like[o] == o),
                    "owner: wanted that of count_product, found ", o, " for row ", i);
  }
  const int32_t* size = indices(row_size, "row_size", rows, a_crow);
  const int64_t entries = std::accumulate(size, size + rows, int64_t{0});
  STD_TORCH_CHECK(entries <= INT32_MAX, "the product has more than 2^31 - 1 entries");
  request.wide = std::any_of(size, size + rows, [](int32_t n) { return n > 65536; });

  int32_t* begin;
  int64_t* at;
  const Tensor crow = result(begin, a_crow, {rows + 1}), program = result(at, a_crow, {rows});
  const Tensor col = result(request.col, a_crow, {entries});
  begin[0] = 0;
  std::inclusive_scan(size, size + rows, begin + 1);
  std::vector<uint8_t> writes(rows), differs(rows);
  request.crow = begin, request.program = at;
  request.writes = writes.data(), request.differs = differs.data();

  for (const bool sharing : {true, false}) {
    const int64_t all = place_programs(rows, first_like, length, sharing, at, writes.data());
    differs.assign(rows, 0);
    const Tensor positions =
        empty_beside(a_crow, {all}, request.wide ? ScalarType::Int : ScalarType::Short);
    request.positions = positions.data_ptr();
    for (const bool comparing : {false, true}) {
      request.comparing = comparing;
      kernels().fill_product(request, parallel_for(a_col));
    }
    if (std::find(differs.begin(), differs.end(), 1) == differs.end())
      return {crow, col, program, positions};
  }
  STD_TORCH_CHECK(false, "unreachable: a program that is not shared was compared");
}

}  // namespace bppsa::cpu

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("convolution_pattern", TORCH_BOX(&bppsa::cpu::convolution_pattern));
  m.impl("pooling_axis", TORCH_BOX(&bppsa::cpu::pooling_axis));
  m.impl("window_pattern", TORCH_BOX(&bppsa::cpu::window_pattern));
  m.impl("max_pool_values", TORCH_BOX(&bppsa::max_pool_values<bppsa::cpu::Device>));
  m.impl("elementwise_values", TORCH_BOX(&bppsa::elementwise_values<bppsa::cpu::Device>));
  m.impl("weight_values", TORCH_BOX(&bppsa::weight_values<bppsa::cpu::Device>));
  m.impl("count_product", TORCH_BOX(&bppsa::cpu::count_product));
  m.impl("fill_product", TORCH_BOX(&bppsa::cpu::fill_product));
  m.impl("multiply_csr", TORCH_BOX(&bppsa::multiply_csr<bppsa::cpu::Device>));
  m.impl("apply_csr", TORCH_BOX(&bppsa::apply_csr<bppsa::cpu::Device>));
}
