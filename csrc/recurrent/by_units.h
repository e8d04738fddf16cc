// Few samples on several threads: each has units of its own, and their weights in its cache.
//
// A step of few samples is as long as its weights take to be read. Where each thread takes samples
// it reads all of them; where it takes units it reads its own, and waits in every step for the
// others' part of the state (simd/team.h).
#pragma once

#include "../simd/team.h"
#include "layer.h"

namespace bppsa::BPPSA_ISA {

// The units of a layer in nearly equal parts, whole vectors each but the last.
template <typename T>
struct UnitParts {
  int64_t H, count;

  // One part where others do better. To wait takes some tenths of a microsecond where threads share
  // a cache, and some microseconds where they do not: a step has to gain those.
  template <class Cell>
  static UnitParts of(const Layer<T>& layer, int64_t threads) {
    constexpr int64_t kAlone = 512 << 10, kMany = 1 << 20, kPart = 128 << 10;  // bytes of weights
    const int64_t bytes = Cell::kGates * layer.H * layer.P * int64_t(sizeof(T));
    const bool of_units = !kSeesC<Cell> && !layer.w_hr;  // all weights
    const int64_t most = min(bytes / kPart, ceil_div(layer.H, int64_t(kMaxWidth<T>)));
    const int64_t count = min(threads, most);
    const bool few = 0 < layer.B && layer.B <= 2 * count;
    const bool pays = few && bytes >= (layer.B == 1 ? kAlone : kMany);
    return {layer.H, of_units && pays ? count : 1};
  }

  int64_t begin(int64_t i) const {
    return min(H, ceil_div(H, int64_t(kMaxWidth<T>)) * i / count * kMaxWidth<T>);
  }
  int64_t size(int64_t i) const { return begin(i + 1) - begin(i); }
};

}  // namespace bppsa::BPPSA_ISA
