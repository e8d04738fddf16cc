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

#include "padded_image.h"
#include "pool.h"
#include "survivors.h"

namespace bppsa::BPPSA_ISA {

template <typename T>
struct Gather {
  Survivors survivors;
  const T* values;
  const T* bias;       // or null
  const int64_t* tap;  // offset in the source, by tap
  const T* source;
  int64_t source_channel;
  T* out;
  int64_t out_channel;
  Grid grid;            // merged; here: out, there: source
  WindowPixels pixels;  // in the source, if places
  uint8_t* places;      // as out; null: no pooling
  bool relu;
};

template <typename T, int W, int Pixels, int Groups, int Vectors>
void gather_patch(const Gather<T>& job, const Patch& patch, int64_t begin, int64_t end) {
  using V = Vec<T, W>;
  const T* source = job.source + patch.there;
  for (int64_t c = begin; c < end; ++c) {
    V acc[Groups][Vectors][Pixels] = {};
    for (int64_t e = job.survivors.rows[c]; e < job.survivors.rows[c + 1]; ++e) {
      const Entry entry = job.survivors.entries[e];
      const T* p = source + entry.channel * job.source_channel + job.tap[entry.tap];
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

template <typename T, int W, int Pixels>
void gather_as(const Gather<T>& job, const Parallel& parallel) {
  constexpr int kMost = kPatchVectors / Pixels;
  const Patches patches(job.grid, W, kMost);
  const Survivors& survivors = job.survivors;
  // A place in the order of patches, and of channels within a patch.
  struct Place {
    int64_t patch, channel;
  };
  const int64_t shares = parallel.threads;
  const auto place = [&](int64_t share) -> Place {
    if (share == shares) return {patches.size(), 0};
    const double vectors = double(patches.vectors()) * share / shares;
    const int64_t patch = patches.holding(int64_t(vectors));
    const double part =
        (vectors - patches[patch].before) / (patches[patch].groups * patches[patch].vectors);
    return {patch, survivors.channel_at(int64_t(part * survivors.work()))};
  };
  for_each_index(parallel, shares, [&](int64_t share) {
    const Place from = place(share), to = place(share + 1);
    for (int64_t t = from.patch; t <= min(to.patch, patches.size() - 1); ++t) {
      const int64_t begin = t == from.patch ? from.channel : 0;
      const int64_t end = t == to.patch ? to.channel : survivors.channels;
      with_patch<kMost>(patches[t], [&](auto groups, auto vectors) {
        gather_patch<T, W, Pixels, decltype(groups)::value, decltype(vectors)::value>(
            job, patches[t], begin, end);
      });
    }
  });
}

template <typename T>
void gather(const Gather<T>& job, const Parallel& parallel) {
  with_width<T>(best_width<T>(job.grid.lanes), [&](auto width) {
    if (job.places)
      gather_as<T, decltype(width)::value, 4>(job, parallel);
    else
      gather_as<T, decltype(width)::value, 1>(job, parallel);
  });
}

}  // namespace bppsa::BPPSA_ISA
