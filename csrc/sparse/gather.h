// Forward and input gradient: every result gathers what its surviving weights read.
//
//   out[c][p] = sum over entries e of channel c: values[e] * source[e.channel][p + e.tap] + bias[c]
//
// and a ReLU of that, or the maximum of a window of four pixels, all of them in registers.
//
// A thread takes a patch of pixels and samples and walks through channels; a channel's entries are
// summed in registers, one load and one multiply-add a vector. What a patch's entries read stays in
// the second-level cache from channel to channel. Shares are equal in entries x vectors, and every
// result is computed by one thread in one order. The addend comes last, as in simd/tile.h.
#pragma once

#include "patches.h"
#include "pool.h"

namespace bppsa::BPPSA_ISA {

template <typename T>
struct Gather : Reading<T> {
  const T* values;
  const T* bias;  // or null
  T* out;
  int64_t out_channel;
  uint8_t* places;  // as out; null: no pooling
  bool relu;
};

template <typename T, int W, int Pixels, int Groups, int Vectors>
void gather_patch(const Gather<T>& job, const Patch& patch, const Channels& channels) {
  using V = Vec<T, W>;
  for (int64_t c = channels.begin; c < channels.end; ++c) {
    V acc[Groups][Vectors][Pixels] = {};
    for (int64_t e = job.survivors.rows[c]; e < job.survivors.rows[c + 1]; ++e) {
      const T* p = job.of(job.survivors.entries[e]) + patch.there;
      const V value = splat<T, W>(job.values[e]);
      for (int k = 0; k < Pixels; ++k) {
        const T* pixel = Pixels == 1 ? p : p + job.pixels.offset[k];
        for (int g = 0; g < Groups; ++g)
          for (int v = 0; v < Vectors; ++v)
            acc[g][v][k] += value * load<T, W>(pixel + g * job.grid.there_column + v * W);
      }
    }
    const V addend = splat<T, W>(job.bias ? job.bias[c] : T(0));
    for (int g = 0; g < Groups; ++g)
      for (int v = 0; v < Vectors; ++v) {
        const int64_t to = c * job.out_channel + patch.here + g * job.grid.here_column + v * W;
        for (V& pixel : acc[g][v]) pixel += addend;
        if constexpr (Pixels == 1) {
          store<T, W>(job.out + to, job.relu ? relu<T, W>(acc[g][v][0]) : acc[g][v][0]);
        } else {
          const auto best = pool<T, W>(acc[g][v], job.relu);
          store<T, W>(job.out + to, best.value);
          store_places<T, W>(job.places + to, best.place);
        }
      }
  }
}

template <typename T>
void gather(const Gather<T>& job, const Parallel& parallel) {
  const Grid& grid = job.grid;
  with_layout<T>(grid, job.places, [&]<int W, int Pixels>(Constant<W>, Constant<Pixels>) {
    const double vectors = double(grid.rows * grid.columns * ceil_div(grid.lanes, W));
    for_each_index(parallel, parallel.threads, [&](int64_t share) {
      const double from = vectors * share / parallel.threads;
      const double to = vectors * (share + 1) / parallel.threads;
      for_each_patch<W, kPatchOf<W> / Pixels>(
          grid,
          [&](int64_t before, int64_t size) {
            return job.survivors.between((from - before) / size, (to - before) / size);
          },
          [&]<int G, int V>(Constant<G>, Constant<V>, const Patch& patch,
                            const Channels& channels) {
            gather_patch<T, W, Pixels, G, V>(job, patch, channels);
          });
    });
  });
}

}  // namespace bppsa::BPPSA_ISA
