// Patterns of transposed Jacobians, written row by row in their final order: nothing is sorted.
#pragma once

#include "../scan/workspace.h"
#include "kernels.h"

namespace bppsa::BPPSA_ISA {

// Which weights reach an output depends on the pixel only, and not on which of the output channels:
// a row is counted by kernel position, not weight by weight.
inline void count_convolution(const ConvolutionArgs& args, const Parallel& parallel) {
  const int64_t plane = args.height * args.width;
  const int64_t positions = args.kernel_height * args.kernel_width;
  for_each_index(parallel, args.channels, [&](int64_t c) {
    Buffer<int32_t> taps(positions);
    for (int64_t k = 0; k < positions; ++k) taps.data[k] = 0;
    for (int64_t t = args.first_tap[c]; t < args.first_tap[c + 1]; ++t)
      ++taps.data[args.taps[t].ky * args.kernel_width + args.taps[t].kx];
    for (int64_t pixel = 0; pixel < plane; ++pixel) {
      const int32_t* out_y = args.out_y + pixel / args.width * args.kernel_height;
      const int32_t* out_x = args.out_x + pixel % args.width * args.kernel_width;
      int32_t size = 0;
      for (int64_t ky = 0; ky < args.kernel_height; ++ky)
        for (int64_t kx = 0; kx < args.kernel_width; ++kx)
          if ((out_y[ky] | out_x[kx]) >= 0) size += taps.data[ky * args.kernel_width + kx];
      args.row_size[c * plane + pixel] = size;
    }
  });
}

inline void fill_convolution(const ConvolutionArgs& args, const Parallel& parallel) {
  const int64_t plane = args.height * args.width;
  const int32_t out_width = int32_t(args.out_width);
  for_each_index(parallel, args.channels * plane, [&](int64_t row) {
    const int64_t c = row / plane, y = row % plane / args.width, x = row % args.width;
    const int32_t* out_y = args.out_y + y * args.kernel_height;
    const int32_t* out_x = args.out_x + x * args.kernel_width;
    int64_t e = args.crow[row];
    for (int64_t t = args.first_tap[c]; t < args.first_tap[c + 1]; ++t) {
      const Tap tap = args.taps[t];
      const int32_t oy = out_y[tap.ky], ox = out_x[tap.kx];
      if ((oy | ox) < 0) continue;
      args.col[e] = tap.plane + oy * out_width + ox;
      args.source[e] = tap.source;
      ++e;
    }
  });
}

// Entries of the rows y of one plane that come before row y, and of the whole plane for y = size.
inline int64_t window_entries_before(const Axis& y, const Axis& x, int64_t row) {
  return int64_t(y.first[row]) * x.first[x.size];
}

inline void fill_windows(const WindowArgs& args, const Parallel& parallel) {
  const Axis &Y = args.y, &X = args.x;
  const int64_t entries = window_entries_before(Y, X, Y.size);
  args.crow[args.channels * Y.size * X.size] = int32_t(args.channels * entries);
  for_each_index(parallel, args.channels * Y.size, [&](int64_t i) {
    const int64_t c = i / Y.size, y = i % Y.size;
    const int32_t first_column = int32_t(c * Y.out_size * X.out_size);
    int64_t e = c * entries + window_entries_before(Y, X, y);
    for (int64_t x = 0; x < X.size; ++x) {
      args.crow[i * X.size + x] = int32_t(e);
      for (int32_t v = Y.first[y]; v < Y.first[y + 1]; ++v)
        for (int32_t h = X.first[x]; h < X.first[x + 1]; ++h)
          args.col[e++] = first_column + Y.out[v] * int32_t(X.out_size) + X.out[h];
    }
  });
}

}  // namespace bppsa::BPPSA_ISA
