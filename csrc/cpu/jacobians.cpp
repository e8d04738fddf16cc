// Patterns and values of layers' transposed Jacobians on the CPU.
#include <vector>

#include "../jacobians/requests.h"

namespace bppsa {

namespace {

constexpr int64_t kMaxEntries = INT32_MAX;

// The weights that are kept, sorted by input channel, output channel, then against the kernel's
// direction: along a row of the transposed Jacobian the outputs ascend.
std::vector<Tap> taps_of(const Tensor& keep, int64_t groups, int64_t out_plane,
                         std::vector<int64_t>& first_tap) {
  const int64_t C_out = keep.size(0), C_in = keep.size(1), KH = keep.size(2), KW = keep.size(3);
  const int64_t C_out_of_group = C_out / groups;
  const auto* kept = static_cast<const bool*>(keep.data_ptr());
  std::vector<Tap> taps;
  for (int64_t c = 0; c < groups * C_in; ++c) {
    const int64_t group = c / C_in;
    for (int64_t o = group * C_out_of_group; o < (group + 1) * C_out_of_group; ++o)
      for (int64_t ky = KH - 1; ky >= 0; --ky)
        for (int64_t kx = KW - 1; kx >= 0; --kx) {
          const int64_t source = ((o * C_in + c % C_in) * KH + ky) * KW + kx;
          if (kept[source])
            taps.push_back({int32_t(o * out_plane), int16_t(ky), int16_t(kx), int32_t(source)});
        }
    first_tap.push_back(int64_t(taps.size()));
  }
  return taps;
}

}  // namespace

// keep (C_out, C_in / groups, KH, KW) bool; out_y (H, KH), out_x (W, KW): see ConvolutionArgs.
std::tuple<Tensor, Tensor, Tensor> convolution_pattern_cpu(const Tensor& keep, const Tensor& out_y,
                                                           const Tensor& out_x, int64_t groups,
                                                           int64_t out_height, int64_t out_width) {
  STD_TORCH_CHECK(keep.dim() == 4 && keep.scalar_type() == ScalarType::Bool &&
                      keep.is_contiguous() && groups >= 1 && keep.size(0) % groups == 0,
                  "keep: wanted contiguous bool (C_out, C_in / groups, KH, KW)");
  STD_TORCH_CHECK(keep.numel() <= kMaxEntries &&
                      keep.size(0) * out_height * out_width <= kMaxEntries &&
                      keep.size(2) <= INT16_MAX && keep.size(3) <= INT16_MAX,
                  "keep: more weights or outputs than 32 bits can number");
  ConvolutionArgs args;
  args.channels = groups * keep.size(1);
  args.height = out_y.size(0), args.width = out_x.size(0);
  args.out_width = out_width;
  args.kernel_height = keep.size(2), args.kernel_width = keep.size(3);
  args.out_y = indices(out_y, "out_y", args.height * args.kernel_height, keep);
  args.out_x = indices(out_x, "out_x", args.width * args.kernel_width, keep);
  std::vector<int64_t> first_tap = {0};
  const std::vector<Tap> taps = taps_of(keep, groups, out_height * out_width, first_tap);
  args.first_tap = first_tap.data(), args.taps = taps.data();

  const int64_t rows = args.channels * args.height * args.width;
  Tensor crow = empty_of(keep, {rows + 1}, ScalarType::Int);
  auto* offset = static_cast<int32_t*>(crow.data_ptr());
  args.row_size = offset + 1;
  const Parallel parallel = parallel_for_work(int64_t(taps.size()) * args.height * args.width);
  kernels().jacobians->count_convolution(args, parallel);
  int64_t entries = 0;
  offset[0] = 0;
  for (int64_t row = 1; row <= rows; ++row) {
    entries += offset[row];
    STD_TORCH_CHECK(entries <= kMaxEntries, "the Jacobian has more than 2^31 - 1 entries");
    offset[row] = int32_t(entries);
  }
  Tensor col = empty_of(keep, {entries}, ScalarType::Int);
  Tensor source = empty_of(keep, {entries}, ScalarType::Int);
  args.crow = offset;
  args.col = static_cast<int32_t*>(col.data_ptr());
  args.source = static_cast<int32_t*>(source.data_ptr());
  kernels().jacobians->fill_convolution(args, parallel);
  return {crow, col, source};
}

// first_y (H + 1), out_y: the outputs that read each y; likewise x.
std::tuple<Tensor, Tensor> window_pattern_cpu(const Tensor& first_y, const Tensor& out_y,
                                              const Tensor& first_x, const Tensor& out_x,
                                              int64_t channels, int64_t out_height,
                                              int64_t out_width) {
  WindowArgs args;
  args.channels = channels;
  args.y = axis_of(first_y, out_y, out_height, first_y);
  args.x = axis_of(first_x, out_x, out_width, first_y);
  const int64_t rows = channels * args.y.size * args.x.size;
  const int64_t entries = channels * out_y.numel() * out_x.numel();
  STD_TORCH_CHECK(entries <= kMaxEntries && channels * out_height * out_width <= kMaxEntries,
                  "the Jacobian has more than 2^31 - 1 entries");
  Tensor crow = empty_of(first_y, {rows + 1}, ScalarType::Int);
  Tensor col = empty_of(first_y, {entries}, ScalarType::Int);
  args.crow = static_cast<int32_t*>(crow.data_ptr());
  args.col = static_cast<int32_t*>(col.data_ptr());
  kernels().jacobians->fill_windows(args, parallel_for_work(entries));
  return {crow, col};
}

Tensor max_pool_values_cpu(const Tensor& x, const Tensor& first_y, const Tensor& out_y,
                           const Tensor& first_x, const Tensor& out_x, int64_t out_height,
                           int64_t out_width, std::vector<int64_t> pool_y,
                           std::vector<int64_t> pool_x) {
  const auto [args, values] =
      max_pool_request(x, first_y, out_y, first_x, out_x, out_height, out_width, pool_y, pool_x);
  kernels().jacobians->max_pool(args, parallel_for_work(values.numel()));
  return values;
}

Tensor elementwise_values_cpu(const Tensor& x, const std::string& function, double slope) {
  const auto [args, values] = elementwise_request(x, function, slope);
  kernels().jacobians->elementwise(args, parallel_for_work(args.n));
  return values;
}

Tensor gather_values_cpu(const Tensor& table, const Tensor& source) {
  const auto [args, values] = gather_request(table, source);
  kernels().jacobians->gather(args, parallel_for_work(args.n));
  return values;
}

}  // namespace bppsa

STABLE_TORCH_LIBRARY_FRAGMENT(bppsa, m) {
  m.def(
      "convolution_pattern(Tensor keep, Tensor out_y, Tensor out_x, int groups, int out_height, "
      "int out_width) -> (Tensor, Tensor, Tensor)");
  m.def(
      "window_pattern(Tensor first_y, Tensor out_y, Tensor first_x, Tensor out_x, int channels, "
      "int out_height, int out_width) -> (Tensor, Tensor)");
  m.def(
      "max_pool_values(Tensor x, Tensor first_y, Tensor out_y, Tensor first_x, Tensor out_x, "
      "int out_height, int out_width, int[] pool_y, int[] pool_x) -> Tensor");
  m.def("elementwise_values(Tensor x, str function, float slope) -> Tensor");
  m.def("gather_values(Tensor table, Tensor source) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("convolution_pattern", TORCH_BOX(&bppsa::convolution_pattern_cpu));
  m.impl("window_pattern", TORCH_BOX(&bppsa::window_pattern_cpu));
  m.impl("max_pool_values", TORCH_BOX(&bppsa::max_pool_values_cpu));
  m.impl("elementwise_values", TORCH_BOX(&bppsa::elementwise_values_cpu));
  m.impl("gather_values", TORCH_BOX(&bppsa::gather_values_cpu));
}
