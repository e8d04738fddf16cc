// Which units a step of zoneout keeps, drawn with Philox4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011): any part of a mask by itself, so that threads share it,
// and what is drawn depends on the seed alone.
//
// PyTorch's own generator on a CPU gives one number after the other, which for one step of one unit
// takes as long as the step.
#pragma once

#include <cstring>

#include "../requests/masks.h"
#include "../simd/parallel.h"

namespace bppsa::BPPSA_ISA {

class MaskBlocks {
  // As many counters at a time as the compiler still takes for vectors.
  static constexpr int kCounters = 64, kWords = 4, kRounds = 10;
  struct Words {
    uint32_t of[kCounters];
  };

 public:
  static constexpr int64_t kSize = kCounters * kWords;

  // The first n <= kSize numbers of block i: 1 with probability threshold / 2^32.
  static BPPSA_INLINE void draw(uint64_t seed, int64_t i, uint32_t threshold, int64_t n,
                                uint8_t* mask) {
    Words a, b, c{}, d{};
    const uint64_t counter = uint64_t(i) * kCounters;  // (a whole block has the same upper half)
    for (int l = 0; l < kCounters; ++l) {
      a.of[l] = uint32_t(counter) + uint32_t(l);
      b.of[l] = uint32_t(counter >> 32);
    }
    uint32_t key = uint32_t(seed), other_key = uint32_t(seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < kRounds; ++round) {
      for (int l = 0; l < kCounters; ++l) {
        const uint64_t p = uint64_t(0xD2511F53u) * a.of[l], q = uint64_t(0xCD9E8D57u) * c.of[l];
        a.of[l] = uint32_t(q >> 32) ^ b.of[l] ^ key;
        b.of[l] = uint32_t(q);
        c.of[l] = uint32_t(p >> 32) ^ d.of[l] ^ other_key;
        d.of[l] = uint32_t(p);
      }
      key += 0x9E3779B9u, other_key += 0xBB67AE85u;
    }
    uint8_t all[kSize];
    for (int l = 0; l < kCounters; ++l) {
      all[l] = a.of[l] < threshold, all[kCounters + l] = b.of[l] < threshold;
      all[2 * kCounters + l] = c.of[l] < threshold, all[3 * kCounters + l] = d.of[l] < threshold;
    }
    std::memcpy(mask, all, size_t(n));
  }
};

inline void draw_mask(const MaskRequest& request, const Parallel& parallel) {
  constexpr int64_t kSize = MaskBlocks::kSize;
  for_each_index(worth_threads(parallel, request.size), ceil_div(request.size, kSize),
                 [&](int64_t i) {
                   const int64_t first = i * kSize, n = min(kSize, request.size - first);
                   MaskBlocks::draw(request.seed, i, request.threshold, n, request.mask + first);
                 });
}

}  // namespace bppsa::BPPSA_ISA
