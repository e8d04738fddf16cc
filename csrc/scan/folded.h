// The chunked scan of a diagonal chain: all chunks side by side.
//
//   1. each of K chunks composes its map, (product, shift) for each element
//   2. the carries are passed from chunk to chunk
//   3. the chunks are replayed from their carries, and the steps that are left over after them
//
// Phases 1 and 3 walk the folded chain (cpu/levels/diagonal_chain.h), whose samples are the chunks
// of the samples: with few elements a walk waits for its own last step, many chunks side by side
// fill that time, so that this pays on a single core too.
//
// The rule of trust is TrustedElement's, element by element, with maps in double. An element out of
// range is walked, in company, and is alone in taking what the walk found.
#pragma once

#include "scan.h"

namespace bppsa::BPPSA_ISA {

// Of each element of each sample of the folded chain.
struct ElementMaps {
  const int64_t count;
  Buffer<double> memory;
  double* product = memory.data;
  double* shift = product + count;
  double* least = shift + count;

  explicit ElementMaps(int64_t count) : count(count), memory(3 * count) {}

  // out = product g + shift; returns whether that can be trusted.
  template <typename T>
  bool apply(int64_t i, T g, T& out) const {
    const double size = product[i] < 0 ? -product[i] : product[i];
    out = T(product[i] * double(g) + shift[i]);
    return size <= TrustedElement<T>::large &&
           (least[i] >= TrustedElement<T>::tiny || (g <= 1 && g >= -1)) && out - out == 0;
  }
};

template <class Chain>
void folded_scan(const Chain& chain, int64_t chunk, const Parallel& parallel) {
  using T = typename Chain::T;
  const int64_t K = chain.steps() / chunk, E = chain.state_width(), samples = chain.batch();
  if (K < 2) return linear_scan(chain, parallel);
  const Chain folded = chain.fold(chunk);
  const int64_t composed = (K - 1) * samples;  // chunk 0 passes its carry to no other
  const ElementMaps maps(composed * E);
  Buffer<T> carries(K * samples * E);  // g at the end of a chunk, and after its replay at its start
  const auto carry = [&](int64_t k, int64_t b) { return carries.data + (k * samples + b) * E; };

  const SampleGroups composing(composed, parallel.threads);
  for_each_index(parallel, composing.count, [&](int64_t i) {
    const int64_t b = composing.begin(i), at = b * E;
    folded.compose(b + samples, composing.size(i), maps.product + at, maps.shift + at,
                   maps.least + at);
  });

  const auto cross = [&](int64_t k, int64_t b, T* walked) {
    const int64_t size = chain.size(b), at = ((k - 1) * samples + b) * E;
    const T* g = carry(k, b);
    T* next = carry(k - 1, b);
    bool trusted = true;
    for (int64_t e = 0; e < size; ++e) trusted &= maps.apply(at + e, g[e], next[e]);
    if (trusted) return;
    std::memcpy(walked, g, size * sizeof(T));
    folded.template walk<false>(chunk, 0, k * samples + b, 1, walked);
    for (int64_t e = 0; e < size; ++e)
      if (!maps.apply(at + e, g[e], next[e])) next[e] = walked[e];
  };
  for_each_index(
      parallel, samples, [&] { return Walker<Chain>(chain, 1); },
      [&](int64_t b, Walker<Chain>& walker) {
        chain.last(b, 1, carry(K - 1, b));
        for (int64_t k = K - 1; k > 0; --k) cross(k, b, walker.g);
      });

  const SampleGroups replayed(K * samples, parallel.threads);
  for_each_index(parallel, replayed.count, [&](int64_t i) {
    const int64_t b = replayed.begin(i);
    folded.template walk<true>(chunk, 0, b, replayed.size(i), carry(0, b));
  });

  const SampleGroups rest(samples, parallel.threads);
  for_each_index(parallel, rest.count, [&](int64_t i) {
    const int64_t b = rest.begin(i), n = rest.size(i);
    chain.template walk<true>(chain.steps() % chunk, 0, b, n, carry(0, b));
    chain.first(b, n, carry(0, b));
  });
}

}  // namespace bppsa::BPPSA_ISA
