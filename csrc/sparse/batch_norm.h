// Batch normalisation by the statistics of the batch, and a ReLU behind it, channel by channel.
//
// A channel is read three times forward (mean, variance, result) and twice backward, mostly from
// the cache. Sums are of vectors over blocks, and of the blocks in float64: as exact for many
// numbers as for few, and always in the same order.
#pragma once

#include <cmath>

#include "../requests/sparse.h"
#include "../simd/parallel.h"
#include "../simd/vec.h"
#include "pool.h"

namespace bppsa::BPPSA_ISA {

// The sum over i of part(i, number of vector lanes), in float64; it gives as many terms.
template <typename T, class Part>
BPPSA_INLINE double sum_of(int64_t n, const Part& part) {
  constexpr int W = kMaxWidth<T>, kSums = 4;
  constexpr int64_t kBlock = 32 * W * kSums;
  double total = 0;
  int64_t i = 0;
  while (i + W * kSums <= n) {
    const int64_t end = min(n - W * kSums, i + kBlock - W * kSums);
    Vec<T, W> sums[kSums] = {};
    for (; i <= end; i += W * kSums)
      for (int k = 0; k < kSums; ++k) sums[k] += part(i + k * W, Constant<W>{});
    total += sum<T, W>((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
  for (; i < n; ++i) total += part(i, Constant<1>{})[0];
  return total;
}

template <typename T>
T number_or(const void* numbers, int64_t c, T otherwise) {
  return numbers ? static_cast<const T*>(numbers)[c] : otherwise;
}

template <typename T, bool kRelu>
void normalize_channel(const BatchNormForwardRequest& request, int64_t c) {
  const int64_t n = request.n;
  const T* x = static_cast<const T*>(request.x) + c * n;
  T* y = static_cast<T*>(request.y) + c * n;
  const double mean =
      sum_of<T>(n, [&]<int W>(int64_t i, Constant<W>) { return load<T, W>(x + i); }) / double(n);
  const T m = T(mean);
  // About the rounded mean, whose own distance is taken out again.
  const double squares = sum_of<T>(n, [&]<int W>(int64_t i, Constant<W>) {
    const Vec<T, W> d = load<T, W>(x + i) - splat<T, W>(m);
    return d * d;
  });
  const double rest = mean - double(m);
  // Of a channel that is nearly constant, the mean's own rounding may be all that is left.
  const double var = max(squares / double(n) - rest * rest, 0.0);
  static_cast<T*>(request.mean)[c] = m;
  static_cast<T*>(request.var)[c] = T(var);
  const T scale = number_or<T>(request.weight, c, 1) * T(1 / std::sqrt(var + request.eps));
  const T shift = number_or<T>(request.bias, c, 0);
  for_each_vector<T>(n, [&]<int W>(int64_t i, Constant<W>) {
    const Vec<T, W> v =
        (load<T, W>(x + i) - splat<T, W>(m)) * splat<T, W>(scale) + splat<T, W>(shift);
    store<T, W>(y + i, kRelu ? relu<T, W>(v) : v);
  });
}

template <typename T, bool kRelu>
void normalize_channel_backward(const BatchNormBackwardRequest& request, int64_t c) {
  const int64_t n = request.n;
  const T* x = static_cast<const T*>(request.x) + c * n;
  const T* y = static_cast<const T*>(request.y) + c * n;
  const T* grad = static_cast<const T*>(request.grad) + c * n;
  T* grad_x = static_cast<T*>(request.grad_x) + c * n;
  const T m = static_cast<const T*>(request.mean)[c];
  const double invstd = 1 / std::sqrt(double(static_cast<const T*>(request.var)[c]) + request.eps);
  const auto gradient = [&]<int W>(int64_t i, Constant<W>) {
    const Vec<T, W> g = load<T, W>(grad + i);
    if constexpr (kRelu) return load<T, W>(y + i) <= Vec<T, W>{} ? Vec<T, W>{} : g;
    return g;
  };
  const double sum_g = sum_of<T>(n, gradient);
  const double sum_gd = sum_of<T>(n, [&]<int W>(int64_t i, Constant<W> width) {
    return gradient(i, width) * (load<T, W>(x + i) - splat<T, W>(m));
  });
  static_cast<T*>(request.grad_bias)[c] = T(sum_g);
  static_cast<T*>(request.grad_weight)[c] = T(sum_gd * invstd);
  const T scale = number_or<T>(request.weight, c, 1) * T(invstd);
  const T constant = T(sum_g / double(n)), slope = T(sum_gd * invstd * invstd / double(n));
  for_each_vector<T>(n, [&]<int W>(int64_t i, Constant<W> width) {
    const Vec<T, W> d = load<T, W>(x + i) - splat<T, W>(m);
    const Vec<T, W> g = gradient(i, width) - splat<T, W>(constant) - d * splat<T, W>(slope);
    store<T, W>(grad_x + i, g * splat<T, W>(scale));
  });
}

template <typename T>
void batch_norm_forward_as(const BatchNormForwardRequest& request, const Parallel& parallel) {
  const auto channel = request.relu ? normalize_channel<T, true> : normalize_channel<T, false>;
  for_each_index(parallel, request.channels, [&](int64_t c) { channel(request, c); });
}

template <typename T>
void batch_norm_backward_as(const BatchNormBackwardRequest& request, const Parallel& parallel) {
  const auto channel =
      request.relu ? normalize_channel_backward<T, true> : normalize_channel_backward<T, false>;
  for_each_index(parallel, request.channels, [&](int64_t c) { channel(request, c); });
}

}  // namespace bppsa::BPPSA_ISA
