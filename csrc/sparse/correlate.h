// Weight gradient: every surviving weight correlates what it read with the gradient it wrote to.
//
//   grad_values[e] = sum over p: grad[c][p] * source[e.channel][p + e.tap]     e an entry of c
//   grad_bias[c]   = sum over p: grad[c][p]
//
// A thread owns a share of the channels. For each patch it loads a channel's gradient once, into
// registers, and walks through the channel's entries: one load and one multiply-add a vector, then
// the lanes' sum, which costs less than to carry a vector of partial sums an entry through memory.
#pragma once

#include "padded_image.h"
#include "pool.h"
#include "survivors.h"

namespace bppsa::BPPSA_ISA {

template <typename T>
struct Correlate {
  Survivors survivors;
  const int64_t* tap;
  const T* source;
  int64_t source_channel;
  ResultGradient<T> grad;
  int64_t grad_channel;
  Grid grid;            // merged; here: grad, there: source
  WindowPixels pixels;  // in the source, if pooled
  T* grad_values;       // or null
  T* grad_bias;         // or null
};

template <typename T, int W>
BPPSA_INLINE Vec<T, W> without_first_lanes(Vec<T, W> v, int n) {
  for (int i = 0; i < W; ++i) v[i] = i < n ? T(0) : v[i];
  return v;
}

template <typename T, int W, int Pixels, int Groups, int Vectors>
void correlate_patch(const Correlate<T>& job, const Patch& patch, int64_t begin, int64_t end) {
  using V = Vec<T, W>;
  constexpr int M = Groups * Vectors, N = Pixels * M, kParts = N < 4 ? N : 4;
  const auto total = [](const V(&part)[kParts]) {
    V all = part[0];
    for (int i = 1; i < kParts; ++i) all += part[i];
    return sum<T, W>(all);
  };
  const T* source = job.source + patch.there;
  for (int64_t c = begin; c < end; ++c) {
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
      const Entry entry = job.survivors.entries[e];
      const T* p = source + entry.channel * job.source_channel + job.tap[entry.tap];
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

template <typename T, int W, int Pixels>
void correlate_as(const Correlate<T>& job, const Parallel& parallel) {
  constexpr int kMost = kPatchVectors / Pixels;
  const Patches patches(job.grid, W, kMost);
  const Survivors& survivors = job.survivors;
  const int64_t shares = parallel.threads;
  for_each_index(parallel, shares, [&](int64_t share) {
    const int64_t begin = survivors.channel_at(survivors.work() * share / shares);
    const int64_t end = survivors.channel_at(survivors.work() * (share + 1) / shares);
    const auto clear = [](T* from, int64_t first, int64_t last) {
      if (from) std::memset(from + first, 0, (last - first) * sizeof(T));
    };
    clear(job.grad_values, survivors.rows[begin], survivors.rows[end]);
    clear(job.grad_bias, begin, end);
    for (int64_t t = 0; t < patches.size(); ++t)
      with_patch<kMost>(patches[t], [&](auto groups, auto vectors) {
        correlate_patch<T, W, Pixels, decltype(groups)::value, decltype(vectors)::value>(
            job, patches[t], begin, end);
      });
  });
}

template <typename T>
void correlate(const Correlate<T>& job, const Parallel& parallel) {
  with_width<T>(best_width<T>(job.grid.lanes), [&](auto width) {
    if (job.grad.places)
      correlate_as<T, decltype(width)::value, 4>(job, parallel);
    else
      correlate_as<T, decltype(width)::value, 1>(job, parallel);
  });
}

}  // namespace bppsa::BPPSA_ISA
