// Of a convolution's geometry, what its transposed Jacobian's rows have in common: host code, for
// no instruction set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "../requests/jacobians.h"

namespace bppsa {

// Which weights of a convolution are kept: (out_channels, in_channels / groups, height, width).
struct KeptWeights {
  const bool* keep;
  int64_t out_channels, in_of_group, height, width, groups;
};

// The weights that are kept, sorted by input channel, output channel, then against the kernel's
// direction: along a row of the transposed Jacobian the outputs ascend. first_tap: of each input
// channel.
inline std::vector<Tap> taps_of(const KeptWeights& of, int64_t out_plane,
                                std::vector<int64_t>& first_tap) {
  const int64_t out_of_group = of.out_channels / of.groups;
  std::vector<Tap> taps;
  first_tap = {0};
  for (int64_t c = 0; c < of.groups * of.in_of_group; ++c) {
    const int64_t group = c / of.in_of_group;
    for (int64_t o = group * out_of_group; o < (group + 1) * out_of_group; ++o)
      for (int64_t ky = of.height - 1; ky >= 0; --ky)
        for (int64_t kx = of.width - 1; kx >= 0; --kx) {
          const int64_t source =
              ((o * of.in_of_group + c % of.in_of_group) * of.height + ky) * of.width + kx;
          if (of.keep[source])
            taps.push_back({int32_t(o * out_plane), int16_t(ky), int16_t(kx), int32_t(source)});
        }
    first_tap.push_back(int64_t(taps.size()));
  }
  return taps;
}

// One axis of a convolution or a pooling.
struct AxisGeometry {
  int64_t size, kernel, stride, padding, dilation, output;  // padding: in front

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
    std::map<std::vector<int32_t>, int32_t> numbers;
    std::vector<int32_t> taps(kernel);
    for (int64_t i = 0; i < axis.size; ++i) {
      int32_t first = INT32_MAX;
      for (int64_t k = 0; k < kernel; ++k) {
        taps[k] = axis.reader(i, k);
        if (taps[k] >= 0) first = std::min(first, taps[k]);
      }
      for (int32_t& tap : taps) tap = tap < 0 ? -1 : tap - first;
      const auto [found, is_new] = numbers.try_emplace(taps, int32_t(numbers.size()));
      if (is_new) distance.insert(distance.end(), taps.begin(), taps.end());
      origin.push_back(first == INT32_MAX ? 0 : first);
      class_of.push_back(found->second);
    }
  }

  TapClasses view() const {
    return {int64_t(distance.size()) / kernel, kernel, class_of.data(), origin.data(),
            distance.data()};
  }
};

// Where each row begins, from the sizes of the templates; returns false beyond 2^31 - 1 entries.
inline bool begin_rows(const ConvolutionRequest& request, int32_t* crow) {
  int64_t row = 0, entries = 0;
  for (int64_t c = 0; c < request.channels; ++c)
    for (int64_t y = 0; y < request.height; ++y) {
      const int32_t* size =
          request.size + (c * request.y.classes + request.y.class_of[y]) * request.x.classes;
      for (int64_t x = 0; x < request.width; ++x) {
        crow[row++] = int32_t(entries);
        entries += size[request.x.class_of[x]];
      }
      if (entries > INT32_MAX) return false;
    }
  crow[row] = int32_t(entries);
  return true;
}

}  // namespace bppsa
