// The steps of a chain, cut into segments of `span`, which is no longer than the chain: segment k
// is steps (lo(k), hi(k)].
#pragma once

#include <cstdint>

#include "../requests/everywhere.h"

namespace bppsa {

struct Segments {
  int64_t steps, span;

  BPPSA_EVERYWHERE int64_t count() const { return steps / span + (steps % span != 0); }
  BPPSA_EVERYWHERE int64_t lo(int64_t k) const { return k * span; }
  BPPSA_EVERYWHERE int64_t hi(int64_t k) const {
    const int64_t end = (k + 1) * span;
    return end < steps ? end : steps;
  }
};

}  // namespace bppsa
