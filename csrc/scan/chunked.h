// The chunked scan, in three phases over K = ceil(T / chunk) chunks:
//
//   1. each inner chunk composes its map; the last in time, whose carry is g_T, is replayed
//   2. the carries are passed from chunk to chunk, matrix-vector only
//   3. every other chunk is replayed from its carry
//
// Phases 1 and 3 are parallel over chunks and samples. The first chunk composes nothing
// (its carry goes nowhere), and each true gradient is written by one replay only.
#pragma once

#include "maps.h"

namespace bppsa::BPPSA_ISA {

template <class Chain>
void chunked_scan(const Chain& chain, int64_t chunk, const Parallel& parallel) {
  using T = typename Chain::T;
  const int64_t H = chain.state_width(), B = chain.batch();
  const int64_t K = ceil_div(chain.steps(), chunk);
  if (K < 2) return linear_scan(chain, parallel);
  const auto lo = [&](int64_t k) { return k * chunk; };
  const auto hi = [&](int64_t k) { return min((k + 1) * chunk, chain.steps()); };

  const int64_t inner = K - 2;  // chunks 1 ... K - 2
  Buffer<T> maps(inner * B * (H * H + H));
  Buffer<Segment<T>> segments(inner * B);
  Buffer<T> carries((K - 1) * B * H);  // carry into chunk k, at its right end
  const auto carry = [&](int64_t k, int64_t b) { return carries.data + (k * B + b) * H; };
  const SampleGroups groups(B, parallel.threads);

  const auto compose = [&](int64_t j, Composer<Chain>& composer) {
    const int64_t k = 1 + j / B, b = j % B;
    T* map = maps.data + j * (H * H + H);
    segments.data[j] = {map, map + H * H, T(0)};
    compose_steps(chain, hi(k), lo(k), b, composer, segments.data[j]);
  };
  const auto replay_last = [&](int64_t i) {
    const int64_t b = groups.begin(i), n = groups.size(i);
    Walker<Chain> walker(chain, n);
    chain.last(b, n, walker.g);
    walker.template walk<true>(chain, chain.steps(), lo(K - 1), b, n);
    std::memcpy(carry(K - 2, b), walker.g, n * H * sizeof(T));
  };
  for_each_index(
      parallel, groups.count + inner * B, [&] { return Composer<Chain>(chain); },
      [&](int64_t i, Composer<Chain>& composer) {
        i < groups.count ? replay_last(i) : compose(i - groups.count, composer);
      });

  for_each_index(
      parallel, B, [&] { return Walker<Chain>(chain, 1); },
      [&](int64_t b, Walker<Chain>& walker) {
        for (int64_t k = K - 2; k > 0; --k)
          cross(chain, segments.data[(k - 1) * B + b], hi(k), lo(k), b, carry(k, b),
                carry(k - 1, b), walker);
      });

  for_each_index(parallel, (K - 1) * groups.count, [&](int64_t i) {
    const int64_t k = i / groups.count, group = i % groups.count;
    const int64_t b = groups.begin(group), n = groups.size(group);
    Walker<Chain> walker(chain, n);
    std::memcpy(walker.g, carry(k, b), n * H * sizeof(T));
    walker.template walk<true>(chain, hi(k), lo(k), b, n);
    if (k == 0) chain.first(b, n, walker.g);
  });
}

}  // namespace bppsa::BPPSA_ISA
