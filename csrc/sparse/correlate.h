// Weight gradient: every surviving weight correlates what it read with the gradient it wrote to.
//
//   grad_values[e] = sum over p: grad[c][p] * source[e.channel][p + e.tap]     e an entry of c
//   grad_bias[c]   = sum over p: grad[c][p]
//
// A thread owns a share of the channels. For each tile it loads a channel's gradient once, into
// registers, and walks through the channel's entries: one load and one multiply-add a vector, then
// one addition to the entry's own vector of partial sums. Lanes are summed at the end.
#pragma once

#include "pattern.h"
#include "source.h"

namespace bppsa::BPPSA_ISA {

template <typename T>
struct Correlate {
  Pattern pattern;
  const int64_t* tap;
  const T* source;
  int64_t source_channel;
  const T* grad;
  int64_t grad_channel;
  Grid grid;       // merged; here: grad, there: source
  T* grad_values;  // or null
  T* grad_bias;    // or null
};

template <typename T, int W>
BPPSA_INLINE Vec<T, W> without_first_lanes(Vec<T, W> v, int n) {
  for (int i = 0; i < W; ++i) v[i] = i < n ? T(0) : v[i];
  return v;
}

// Vectors of partial sums, of a share of the channels.
template <typename T, int W>
struct PartialSums {
  T* values;  // W an entry, from the share's first on
  T* bias;    // W a channel
  int64_t first_entry, first_channel;

  T* of_entry(int64_t e) const { return values + (e - first_entry) * W; }
  T* of_channel(int64_t c) const { return bias + (c - first_channel) * W; }
};

template <typename T, int W, int Groups, int Vectors>
void correlate_tile(const Correlate<T>& job, const Tile& tile, int64_t begin, int64_t end,
                    const PartialSums<T, W>& sums) {
  using V = Vec<T, W>;
  constexpr int N = Groups * Vectors, kParts = N < 4 ? N : 4;
  const auto add = [](T* sum, const V(&part)[kParts]) {
    V total = part[0];
    for (int i = 1; i < kParts; ++i) total += part[i];
    store<T, W>(sum, load<T, W>(sum) + total);
  };
  const T* source = job.source + tile.there;
  for (int64_t c = begin; c < end; ++c) {
    const T* grad = job.grad + c * job.grad_channel + tile.here;
    V g[N];
    for (int i = 0; i < N; ++i) {
      const int64_t offset = i / Vectors * job.grid.here_column + i % Vectors * W;
      g[i] = load<T, W>(grad + offset);
    }
    if constexpr (Vectors == 1)
      if (tile.skip)
        for (int i = 0; i < N; ++i) g[i] = without_first_lanes<T, W>(g[i], tile.skip);
    V part[kParts] = {};
    for (int i = 0; i < N; ++i) part[i % kParts] += g[i];
    add(sums.of_channel(c), part);
    if (!job.grad_values) continue;
    for (int64_t e = job.pattern.rows[c]; e < job.pattern.rows[c + 1]; ++e) {
      const Entry entry = job.pattern.entries[e];
      const T* p = source + entry.channel * job.source_channel + job.tap[entry.tap];
      V product[kParts] = {};
      for (int i = 0; i < N; ++i) {
        const int64_t offset = i / Vectors * job.grid.there_column + i % Vectors * W;
        product[i % kParts] += g[i] * load<T, W>(p + offset);
      }
      add(sums.of_entry(e), product);
    }
  }
}

template <typename T, int W>
void correlate_as(const Correlate<T>& job, const Parallel& parallel) {
  const Tiles tiles(job.grid, W);
  const Pattern& pattern = job.pattern;
  const int64_t shares = parallel.threads;
  for_each_index(parallel, shares, [&](int64_t share) {
    const int64_t begin = pattern.channel_at(pattern.work() * share / shares);
    const int64_t end = pattern.channel_at(pattern.work() * (share + 1) / shares);
    const int64_t first = pattern.rows[begin];
    const int64_t entries = job.grad_values ? pattern.rows[end] - first : 0;
    Buffer<T> memory((entries + end - begin) * W);
    std::memset(memory.data, 0, (entries + end - begin) * W * sizeof(T));
    const PartialSums<T, W> sums{memory.data, memory.data + entries * W, first, begin};
    for (int64_t t = 0; t < tiles.size(); ++t)
      with_tile(tiles[t], [&](auto groups, auto vectors) {
        correlate_tile<T, W, decltype(groups)::value, decltype(vectors)::value>(job, tiles[t],
                                                                                begin, end, sums);
      });
    for (int64_t e = first; e < first + entries; ++e)
      job.grad_values[e] = sum<T, W>(load<T, W>(sums.of_entry(e)));
    if (job.grad_bias)
      for (int64_t c = begin; c < end; ++c)
        job.grad_bias[c] = sum<T, W>(load<T, W>(sums.of_channel(c)));
  });
}

template <typename T>
void correlate(const Correlate<T>& job, const Parallel& parallel) {
  with_width<T>(best_width<T>(job.grid.lanes),
                [&](auto width) { correlate_as<T, decltype(width)::value>(job, parallel); });
}

}  // namespace bppsa::BPPSA_ISA
