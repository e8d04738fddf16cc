// Patterns of transposed Jacobians, written row by row in their final order: nothing is sorted.
#pragma once

#include "../scan/workspace.h"
#include "kernels.h"

namespace bppsa::BPPSA_ISA {

// Calls body(template, distances along y, along x) for the templates of a channel.
template <class Body>
BPPSA_INLINE void for_each_template(const ConvolutionArgs& args, int64_t channel,
                                    const Body& body) {
  const TapClasses &Y = args.y, &X = args.x;
  for (int64_t y = 0; y < Y.classes; ++y)
    for (int64_t x = 0; x < X.classes; ++x)
      body((channel * Y.classes + y) * X.classes + x, Y.distance + y * Y.kernel,
           X.distance + x * X.kernel);
}

// Which taps reach an output depends on the class only, and not on which of the output channels: a
// template is counted by kernel position, not weight by weight.
inline void count_templates(const ConvolutionArgs& args, const Parallel& parallel) {
  const int64_t KH = args.y.kernel, KW = args.x.kernel;
  for_each_index(parallel, args.channels, [&](int64_t c) {
    Buffer<int32_t> taps(KH * KW);
    for (int64_t k = 0; k < KH * KW; ++k) taps.data[k] = 0;
    for (int64_t t = args.first_tap[c]; t < args.first_tap[c + 1]; ++t)
      ++taps.data[args.taps[t].ky * KW + args.taps[t].kx];
    for_each_template(args, c, [&](int64_t i, const int32_t* y, const int32_t* x) {
      int32_t size = 0;
      for (int64_t ky = 0; ky < KH; ++ky)
        for (int64_t kx = 0; kx < KW; ++kx)
          if ((y[ky] | x[kx]) >= 0) size += taps.data[ky * KW + kx];
      args.size[i] = size;
    });
  });
}

inline void fill_templates(const ConvolutionArgs& args, const Parallel& parallel) {
  const int32_t out_width = int32_t(args.out_width);
  for_each_index(parallel, args.channels, [&](int64_t c) {
    for_each_template(args, c, [&](int64_t i, const int32_t* y, const int32_t* x) {
      int64_t e = args.start[i];
      for (int64_t t = args.first_tap[c]; t < args.first_tap[c + 1]; ++t) {
        const Tap tap = args.taps[t];
        const int32_t dy = y[tap.ky], dx = x[tap.kx];
        if ((dy | dx) < 0) continue;
        args.column[e] = tap.plane + dy * out_width + dx;
        args.source[e] = tap.source;
        ++e;
      }
    });
  });
}

inline void fill_convolution(const ConvolutionArgs& args, const Parallel& parallel) {
  const TapClasses &Y = args.y, &X = args.x;
  const int32_t out_width = int32_t(args.out_width);
  for_each_index(parallel, args.channels * args.height, [&](int64_t i) {
    const int64_t c = i / args.height, y = i % args.height;
    const int32_t* start = args.start + (c * Y.classes + Y.class_of[y]) * X.classes;
    for (int64_t x = 0; x < args.width; ++x) {
      const int64_t row = i * args.width + x;
      const int32_t first = start[X.class_of[x]], size = args.crow[row + 1] - args.crow[row];
      const int32_t origin = Y.origin[y] * out_width + X.origin[x];
      const int32_t* __restrict__ column = args.column + first;
      int32_t* __restrict__ col = args.col + args.crow[row];
      for (int32_t e = 0; e < size; ++e) col[e] = column[e] + origin;
      args.first[row] = first;
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
  bool apart = true;  // whether each x is in one window, the common case
  for (int64_t x = 0; x < X.size; ++x) apart = apart && X.first[x + 1] - X.first[x] == 1;
  for_each_index(parallel, args.channels * Y.size, [&](int64_t i) {
    const int64_t c = i / Y.size, y = i % Y.size;
    const int32_t first_column = int32_t(c * Y.out_size * X.out_size);
    int64_t e = c * entries + window_entries_before(Y, X, y);
    if (apart && Y.first[y + 1] - Y.first[y] == 1) {
      const int32_t line = first_column + Y.out[Y.first[y]] * int32_t(X.out_size);
      int32_t *crow = args.crow + i * X.size, *col = args.col + e;
      for (int64_t x = 0; x < X.size; ++x) crow[x] = int32_t(e + x), col[x] = line + X.out[x];
      return;
    }
    for (int64_t x = 0; x < X.size; ++x) {
      args.crow[i * X.size + x] = int32_t(e);
      for (int32_t v = Y.first[y]; v < Y.first[y + 1]; ++v)
        for (int32_t h = X.first[x]; h < X.first[x + 1]; ++h)
          args.col[e++] = first_column + Y.out[v] * int32_t(X.out_size) + X.out[h];
    }
  });
}

}  // namespace bppsa::BPPSA_ISA
