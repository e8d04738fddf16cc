// Patterns and values of layers' transposed Jacobians on the CPU.
#include <algorithm>
#include <numeric>
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

// size, kernel, stride, padding in front, dilation, size of the output.
struct AxisGeometry {
  int64_t size, kernel, stride, padding, dilation, output;

  explicit AxisGeometry(const std::vector<int64_t>& numbers) {
    STD_TORCH_CHECK(numbers.size() == 6,
                    "axis: wanted size, kernel, stride, padding, dilation, output");
    size = numbers[0], kernel = numbers[1], stride = numbers[2], padding = numbers[3];
    dilation = numbers[4], output = numbers[5];
    STD_TORCH_CHECK(std::min({size, kernel, stride, dilation, output}) >= 1 && padding >= 0 &&
                        std::max(size, output) <= kMaxEntries && kernel <= INT16_MAX,
                    "axis: found a number out of range");
  }

  // The output that reads `input` by tap k of the kernel, or -1.
  int32_t reader(int64_t input, int64_t k) const {
    const int64_t at = input + padding - dilation * k;
    return at >= 0 && at % stride == 0 && at / stride < output ? int32_t(at / stride) : -1;
  }
};

// The classes of an axis, in the order in which they first come.
struct Classes {
  std::vector<int32_t> class_of, origin, distance;
  int64_t kernel;

  explicit Classes(const AxisGeometry& axis) : kernel(axis.kernel) {
    std::vector<int32_t> taps(kernel);
    for (int64_t i = 0; i < axis.size; ++i) {
      int32_t first = INT32_MAX;
      for (int64_t k = 0; k < kernel; ++k) {
        taps[k] = axis.reader(i, k);
        if (taps[k] >= 0) first = std::min(first, taps[k]);
      }
      for (int32_t& tap : taps) tap = tap < 0 ? -1 : tap - first;
      origin.push_back(first == INT32_MAX ? 0 : first);
      class_of.push_back(find_or_add(taps));
    }
  }

  int32_t find_or_add(const std::vector<int32_t>& taps) {
    int64_t at = 0;
    while (at < int64_t(distance.size()) &&
           !std::equal(taps.begin(), taps.end(), distance.begin() + at))
      at += kernel;
    if (at == int64_t(distance.size())) distance.insert(distance.end(), taps.begin(), taps.end());
    return int32_t(at / kernel);
  }

  TapClasses view() const {
    return {int64_t(distance.size()) / kernel, kernel, class_of.data(), origin.data(),
            distance.data()};
  }
};

// Where each row begins, from the sizes of the templates.
void begin_rows(const ConvolutionArgs& args, int32_t* crow) {
  int64_t row = 0, entries = 0;
  for (int64_t c = 0; c < args.channels; ++c)
    for (int64_t y = 0; y < args.height; ++y) {
      const int32_t* size = args.size + (c * args.y.classes + args.y.class_of[y]) * args.x.classes;
      for (int64_t x = 0; x < args.width; ++x) {
        crow[row++] = int32_t(entries);
        entries += size[args.x.class_of[x]];
      }
      STD_TORCH_CHECK(entries <= kMaxEntries, "the Jacobian has more than 2^31 - 1 entries");
    }
  crow[row] = int32_t(entries);
}

}  // namespace

// keep (C_out, C_in / groups, KH, KW) bool; of y and x: see AxisGeometry. Of the transposed
// Jacobian crow and col; source (of the templates) and first (of each row): see WeightArgs.
std::tuple<Tensor, Tensor, Tensor, Tensor> convolution_pattern_cpu(const Tensor& keep,
                                                                   std::vector<int64_t> of_y,
                                                                   std::vector<int64_t> of_x,
                                                                   int64_t groups) {
  STD_TORCH_CHECK(keep.dim() == 4 && keep.scalar_type() == ScalarType::Bool &&
                      keep.is_contiguous() && groups >= 1 && keep.size(0) % groups == 0,
                  "keep: wanted contiguous bool (C_out, C_in / groups, KH, KW)");
  const AxisGeometry y(of_y), x(of_x);
  STD_TORCH_CHECK(keep.size(2) == y.kernel && keep.size(3) == x.kernel, "keep: wanted the kernels");
  STD_TORCH_CHECK(keep.numel() <= kMaxEntries && keep.size(0) * y.output * x.output <= kMaxEntries,
                  "keep: more weights or outputs than 32 bits can number");
  const Classes y_classes(y), x_classes(x);
  ConvolutionArgs args;
  args.channels = groups * keep.size(1), args.height = y.size, args.width = x.size;
  args.out_width = x.output;
  args.y = y_classes.view(), args.x = x_classes.view();
  std::vector<int64_t> first_tap = {0};
  const std::vector<Tap> taps = taps_of(keep, groups, y.output * x.output, first_tap);
  args.first_tap = first_tap.data(), args.taps = taps.data();

  const int64_t templates = args.channels * args.y.classes * args.x.classes;
  std::vector<int32_t> size(templates), start(templates);
  args.size = size.data(), args.start = start.data();
  kernels().jacobians->count_templates(args, parallel_for_work(int64_t(taps.size())));
  const int64_t rows = args.channels * args.height * args.width;
  Tensor crow = empty_of(keep, {rows + 1}, ScalarType::Int);
  auto* offset = static_cast<int32_t*>(crow.data_ptr());
  begin_rows(args, offset);
  std::exclusive_scan(size.begin(), size.end(), start.begin(), 0);
  const int64_t n = templates ? int64_t(start.back()) + size.back() : 0;
  std::vector<int32_t> column(n);
  Tensor source = empty_of(keep, {n}, ScalarType::Int);
  Tensor first = empty_of(keep, {rows}, ScalarType::Int);
  Tensor col = empty_of(keep, {int64_t(offset[rows])}, ScalarType::Int);
  args.column = column.data(), args.source = static_cast<int32_t*>(source.data_ptr());
  args.crow = offset;
  args.col = static_cast<int32_t*>(col.data_ptr());
  args.first = static_cast<int32_t*>(first.data_ptr());
  kernels().jacobians->fill_templates(args, parallel_for_work(n));
  kernels().jacobians->fill_convolution(args, parallel_for_work(col.numel()));
  return {crow, col, source, first};
}

// The outputs that read each input of a pooling's axis: see Axis. `like` lies on the CPU.
std::tuple<Tensor, Tensor> pooling_axis_cpu(const Tensor& like, std::vector<int64_t> geometry) {
  const AxisGeometry axis(geometry);
  std::vector<int32_t> readers;
  Tensor first = empty_of(like, {axis.size + 1}, ScalarType::Int);
  auto* begin = static_cast<int32_t*>(first.data_ptr());
  for (int64_t i = 0; i < axis.size; ++i) {
    begin[i] = int32_t(readers.size());
    for (int64_t k = axis.kernel - 1; k >= 0; --k)
      if (const int32_t reader = axis.reader(i, k); reader >= 0) readers.push_back(reader);
  }
  begin[axis.size] = int32_t(readers.size());
  Tensor out = empty_of(like, {int64_t(readers.size())}, ScalarType::Int);
  std::copy(readers.begin(), readers.end(), static_cast<int32_t*>(out.data_ptr()));
  return {first, out};
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

Tensor weight_values_cpu(const Tensor& weight, const Tensor& source, const Tensor& first,
                         const Tensor& crow, int64_t entries) {
  const auto [args, values] = weight_request(weight, source, first, crow, entries);
  kernels().jacobians->weights(args, parallel_for_work(entries));
  return values;
}

}  // namespace bppsa

STABLE_TORCH_LIBRARY_FRAGMENT(bppsa, m) {
  m.def(
      "convolution_pattern(Tensor keep, int[] y, int[] x, int groups) -> "
      "(Tensor, Tensor, Tensor, Tensor)");
  m.def("pooling_axis(Tensor like, int[] geometry) -> (Tensor, Tensor)");
  m.def(
      "window_pattern(Tensor first_y, Tensor out_y, Tensor first_x, Tensor out_x, int channels, "
      "int out_height, int out_width) -> (Tensor, Tensor)");
  m.def(
      "max_pool_values(Tensor x, Tensor first_y, Tensor out_y, Tensor first_x, Tensor out_x, "
      "int out_height, int out_width, int[] pool_y, int[] pool_x) -> Tensor");
  m.def("elementwise_values(Tensor x, str function, float slope) -> Tensor");
  m.def(
      "weight_values(Tensor weight, Tensor source, Tensor first, Tensor crow, int entries) -> "
      "Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("convolution_pattern", TORCH_BOX(&bppsa::convolution_pattern_cpu));
  m.impl("window_pattern", TORCH_BOX(&bppsa::window_pattern_cpu));
  m.impl("max_pool_values", TORCH_BOX(&bppsa::max_pool_values_cpu));
  m.impl("elementwise_values", TORCH_BOX(&bppsa::elementwise_values_cpu));
  m.impl("pooling_axis", TORCH_BOX(&bppsa::pooling_axis_cpu));
  m.impl("weight_values", TORCH_BOX(&bppsa::weight_values_cpu));
}
