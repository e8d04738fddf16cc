// Weight gradient: every surviving weight correlates what it read with the gradient it wrote to.
//
//   grad_values[e] = sum over p: grad[c][p] * source[e.channel][p + e.tap]     e an entry of c
//   grad_bias[c]   = sum over p: grad[c][p]
//
// A thread owns a share of the channels. For each patch it loads a channel's gradient once, into
// registers, and walks through the channel's entries: one load and one multiply-add a vector, then
// the lanes' sum, which costs less than to carry a vector of partial sums an entry through memory.
#pragma once

#include "patches.h"
#include "pool.h"

namespace bppsa::BPPSA_ISA {

template <typename T>
struct Correlate : Reading<T> {
  ResultGradient<T> grad;
  int64_t grad_channel;
  T* grad_values;  // or null
  T* grad_bias;    // or null
};

template <typename T, int W>
BPPSA_INLINE Vec<T, W> without_first_lanes(Vec<T, W> v, int n) {
  for (int i = 0; i < W; ++i) v[i] = i < n ? T(0) : v[i];
  return v;
}

template <typename T, int W, int Pixels, int Groups, int Vectors>
void correlate_patch(const Correlate<T>& job, const Patch& patch, const Channels& channels) {
  using V = Vec<T, W>;
  constexpr int M = Groups * Vectors, N = Pixels * M, kParts = N < 4 ? N : 4;
  const auto total = [](const V(&part)[kParts]) {
    V all = part[0];
    for (int i = 1; i < kParts; ++i) all += part[i];
    return sum<T, W>(all);
  };
  for (int64_t c = channels.begin; c < channels.end; ++c) {
    V g[N];
    for (int i = 0; i < N; ++i) {
      const int64_t here = i % M / Vectors * job.grid.here_column + i % Vectors * W;
      const int64_t offset = c * job.grad_channel + patch.here + here;
      if constexpr (Pixels == 1)
        g[i] = job.grad.template at<W>(offset);
      else
        g[i] = job.grad.template pixel<W>(offset, i / M);
    }
    if constexpr (Vectors == 1)
      if (patch.skip)
        for (int i = 0; i < N; ++i) g[i] = without_first_lanes<T, W>(g[i], patch.skip);
    if (job.grad_bias) {
      V part[kParts] = {};
      for (int i = 0; i < N; ++i) part[i % kParts] += g[i];
      job.grad_bias[c] += total(part);
    }
    if (!job.grad_values) continue;
    for (int64_t e = job.survivors.rows[c]; e < job.survivors.rows[c + 1]; ++e) {
      const T* p = job.of(job.survivors.entries[e]) + patch.there;
      V product[kParts] = {};
      for (int i = 0; i < N; ++i) {
        const int64_t there = i % M / Vectors * job.grid.there_column + i % Vectors * W;
        const int64_t pixel = Pixels == 1 ? 0 : job.pixels.offset[i / M];
        product[i % kParts] += g[i] * load<T, W>(p + pixel + there);
      }
      job.grad_values[e] += total(product);
    }
  }
}

template <typename T>
void correlate(const Correlate<T>& job, const Parallel& parallel) {
  const auto clear = [](T* sums, int64_t n) {
    if (sums) std::memset(sums, 0, n * sizeof(T));
  };
  clear(job.grad_values, job.survivors.size());
  clear(job.grad_bias, job.survivors.channels);
  with_layout<T>(job.grid, job.grad.places, [&]<int W, int Pixels>(Constant<W>, Constant<Pixels>) {
    for_each_index(parallel, parallel.threads, [&](int64_t share) {
      const Channels own = job.survivors.between(double(share) / parallel.threads,
                                                 double(share + 1) / parallel.threads);
      for_each_patch<W, kPatchOf<W> / Pixels>(
          job.grid, [&](int64_t, int64_t) { return own; },
          [&]<int G, int V>(Constant<G>, Constant<V>, const Patch& patch,
                            const Channels& channels) {
            correlate_patch<T, W, Pixels, G, V>(job, patch, channels);
          });
    });
  });
}

}  // namespace bppsa::BPPSA_ISA
