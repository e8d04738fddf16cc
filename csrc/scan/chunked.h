// The chunked scan, in three phases over K = ceil(T / chunk) chunks:
//
//   1. each inner chunk composes its map; the last in time, whose carry is g_T, is replayed
//   2. the carries are passed from chunk to chunk, matrix-vector only
//   3. every other chunk is replayed from its carry
//
// Phases 1 and 3 are parallel over chunks and samples. The first chunk composes nothing
// (its carry goes nowhere), and each true gradient is written by one replay only.
#pragma once

#include "segment.h"

namespace bppsa::BPPSA_ISA {

template <class Cell>
void chunked_scan(const Cell& cell, int64_t chunk, const Parallel& parallel) {
  using T = typename Cell::T;
  const int64_t H = cell.H(), B = cell.batch();
  const int64_t K = ceil_div(cell.steps(), chunk);
  if (K < 2) return linear_scan(cell, parallel);
  const auto lo = [&](int64_t k) { return k * chunk; };
  const auto hi = [&](int64_t k) { return min((k + 1) * chunk, cell.steps()); };

  const int64_t inner = K - 2;  // chunks 1 ... K - 2
  Buffer<T> maps(inner * B * (H * H + H));
  Buffer<Segment<T>> segments(inner * B);
  Buffer<T> carries((K - 1) * B * H);  // carry into chunk k, at its right end
  const auto carry = [&](int64_t k, int64_t b) { return carries.data + (k * B + b) * H; };
  const Groups groups(B, parallel.threads);

  const auto compose = [&](int64_t j, Composer<Cell>& composer) {
    const int64_t k = 1 + j / B, b = j % B;
    T* map = maps.data + j * (H * H + H);
    segments.data[j] = {map, map + H * H, T(0)};
    compose_steps(cell, hi(k), lo(k), b, composer, segments.data[j]);
  };
  const auto replay_last = [&](int64_t i) {
    const int64_t b = groups.begin(i), n = groups.size(i);
    Walker<Cell> walker(cell, n);
    cell.last(b, n, walker.g);
    walker.template walk<true>(cell, cell.steps(), lo(K - 1), b, n);
    std::memcpy(carry(K - 2, b), walker.g, n * H * sizeof(T));
  };
  for_each_index(
      parallel, groups.count + inner * B, [&] { return Composer<Cell>(cell); },
      [&](int64_t i, Composer<Cell>& composer) {
        i < groups.count ? replay_last(i) : compose(i - groups.count, composer);
      });

  for_each_index(
      parallel, B, [&] { return Walker<Cell>(cell, 1); },
      [&](int64_t b, Walker<Cell>& walker) {
        for (int64_t k = K - 2; k > 0; --k)
          cross(cell, segments.data[(k - 1) * B + b], hi(k), lo(k), b, carry(k, b), carry(k - 1, b),
                walker);
      });

  for_each_index(parallel, (K - 1) * groups.count, [&](int64_t i) {
    const int64_t k = i / groups.count, group = i % groups.count;
    const int64_t b = groups.begin(group), n = groups.size(group);
    Walker<Cell> walker(cell, n);
    std::memcpy(walker.g, carry(k, b), n * H * sizeof(T));
    walker.template walk<true>(cell, hi(k), lo(k), b, n);
    if (k == 0) cell.first(b, n, walker.g);
  });
}

}  // namespace bppsa::BPPSA_ISA
