// Patterns of transposed Jacobians, written row by row in their final order: nothing is sorted.
#pragma once

#include <cstring>

#include "../requests/jacobians.h"
#include "../simd/buffer.h"
#include "../simd/parallel.h"

namespace bppsa::BPPSA_ISA {

// Calls body(template, distances along y, along x) for the templates of a channel.
template <class Body>
BPPSA_INLINE void for_each_template(const ConvolutionRequest& request, int64_t channel,
                                    const Body& body) {
  const TapClasses &Y = request.y, &X = request.x;
  for (int64_t y = 0; y < Y.classes; ++y)
    for (int64_t x = 0; x < X.classes; ++x)
      body((channel * Y.classes + y) * X.classes + x, Y.distance + y * Y.kernel,
           X.distance + x * X.kernel);
}

// Which taps reach an output depends on the class only, and not on which of the output channels: a
// template is counted by kernel position, not weight by weight.
inline void measure_templates(const ConvolutionRequest& request, const Parallel& parallel) {
  const int64_t KH = request.y.kernel, KW = request.x.kernel;
  for_each_index(parallel, request.channels, [&](int64_t c) {
    Buffer<int32_t> taps(KH * KW);
    std::memset(taps.data, 0, KH * KW * sizeof(int32_t));
    for (int64_t t = request.first_tap[c]; t < request.first_tap[c + 1]; ++t)
      ++taps.data[request.taps[t].ky * KW + request.taps[t].kx];
    for_each_template(request, c, [&](int64_t i, const int32_t* y, const int32_t* x) {
      int32_t size = 0;
      for (int64_t ky = 0; ky < KH; ++ky)
        for (int64_t kx = 0; kx < KW; ++kx)
          if ((y[ky] | x[kx]) >= 0) size += taps.data[ky * KW + kx];
      request.size[i] = size;
    });
  });
}

inline void write_templates(const ConvolutionRequest& request, const Parallel& parallel) {
  const int32_t out_width = int32_t(request.out_width);
  for_each_index(parallel, request.channels, [&](int64_t c) {
    for_each_template(request, c, [&](int64_t i, const int32_t* y, const int32_t* x) {
      int64_t e = request.start[i];
      for (int64_t t = request.first_tap[c]; t < request.first_tap[c + 1]; ++t) {
        const Tap tap = request.taps[t];
        const int32_t dy = y[tap.ky], dx = x[tap.kx];
        if ((dy | dx) < 0) continue;
        request.column[e] = tap.plane + dy * out_width + dx;
        request.source[e++] = tap.source;
      }
    });
  });
}

inline void write_convolution(const ConvolutionRequest& request, const Parallel& parallel) {
  const TapClasses &Y = request.y, &X = request.x;
  const int32_t out_width = int32_t(request.out_width);
  for_each_index(parallel, request.channels * request.height, [&](int64_t i) {
    const int64_t c = i / request.height, y = i % request.height;
    const int32_t* start = request.start + (c * Y.classes + Y.class_of[y]) * X.classes;
    for (int64_t x = 0; x < request.width; ++x) {
      const int64_t row = i * request.width + x;
      const int32_t first = start[X.class_of[x]], size = request.crow[row + 1] - request.crow[row];
      const int32_t origin = Y.origin[y] * out_width + X.origin[x];
      const int32_t* __restrict__ column = request.column + first;
      int32_t* __restrict__ col = request.col + request.crow[row];
      for (int32_t e = 0; e < size; ++e) col[e] = column[e] + origin;
      request.first[row] = first;
    }
  });
}

inline void write_windows(const WindowRequest& request, const Parallel& parallel) {
  const Axis &Y = request.y, &X = request.x;
  const int64_t of_row = X.first[X.size], entries = Y.first[Y.size] * of_row;
  request.crow[request.channels * Y.size * X.size] = int32_t(request.channels * entries);
  bool apart = true;  // whether each x is in one window, the common case
  for (int64_t x = 0; x < X.size; ++x) apart = apart && X.first[x + 1] - X.first[x] == 1;
  for_each_index(parallel, request.channels * Y.size, [&](int64_t i) {
    const int64_t c = i / Y.size, y = i % Y.size;
    const int32_t first_column = int32_t(c * Y.out_size * X.out_size);
    int64_t e = c * entries + Y.first[y] * of_row;
    if (apart && Y.first[y + 1] - Y.first[y] == 1) {
      const int32_t line = first_column + Y.out[Y.first[y]] * int32_t(X.out_size);
      int32_t *crow = request.crow + i * X.size, *col = request.col + e;
      for (int64_t x = 0; x < X.size; ++x) crow[x] = int32_t(e + x), col[x] = line + X.out[x];
      return;
    }
    for (int64_t x = 0; x < X.size; ++x) {
      request.crow[i * X.size + x] = int32_t(e);
      for (int32_t v = Y.first[y]; v < Y.first[y + 1]; ++v)
        for (int32_t h = X.first[x]; h < X.first[x + 1]; ++h)
          request.col[e++] = first_column + Y.out[v] * int32_t(X.out_size) + X.out[h];
    }
  });
}

}  // namespace bppsa::BPPSA_ISA
