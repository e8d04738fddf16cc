// Dropout with the numbers of PyTorch's generator on a CPU, a Mersenne twister (Matsumoto,
// Nishimura, "Mersenne twister", ACM TOMACS 8, 1998), so that a seed gives the mask that it gives
// there.
//
// PyTorch draws one number after the other, 7 ns each: for a layer of 64 units that is a fifth of
// its training step. A twister's next 624 words depend on words at least 227 before them, so
// vectors of them are made at once.
#pragma once

#include <cmath>
#include <cstring>

#include "../requests/masks.h"
#include "../simd/parallel.h"

namespace bppsa::BPPSA_ISA {

class MersenneTwister {
  static constexpr int kWords = MersenneState::kWords, kAhead = 397;

 public:
  explicit MersenneTwister(const MersenneState& state)
      : next_(int(state.next)), left_(state.left - 1) {
    for (int i = 0; i < kWords; ++i) words_[i] = uint32_t(state.words[i]);
  }

  void give_back(MersenneState& state) const {
    for (int i = 0; i < kWords; ++i) state.words[i] = words_[i];
    state.next = uint64_t(next_), state.left = left_ + 1;
  }

  // Writes up to n of the next words, as many as there are before others have to be made: how many.
  int some(int64_t n, uint32_t* out) {
    if (left_ == 0) renew();
    const int count = int(min(n, int64_t(left_)));
    const uint32_t* const from = words_ + next_;
    for (int i = 0; i < count; ++i) {
      uint32_t y = from[i];
      y ^= y >> 11;
      y ^= (y << 7) & 0x9d2c5680u;
      y ^= (y << 15) & 0xefc60000u;
      out[i] = y ^ (y >> 18);
    }
    next_ += count, left_ -= count;
    return count;
  }

 private:
  static BPPSA_INLINE uint32_t twisted(uint32_t upper, uint32_t lower, uint32_t ahead) {
    const uint32_t y = (upper & 0x80000000u) | (lower & 0x7fffffffu);
    return ahead ^ (y >> 1) ^ (-(lower & 1u) & 0x9908b0dfu);
  }

  void renew() {
    uint32_t* const w = words_;
    constexpr int kBehind = kWords - kAhead;
    for (int i = 0; i < kBehind; ++i) w[i] = twisted(w[i], w[i + 1], w[i + kAhead]);
    for (int i = kBehind; i < kWords - 1; ++i) w[i] = twisted(w[i], w[i + 1], w[i - kBehind]);
    w[kWords - 1] = twisted(w[kWords - 1], w[0], w[kAhead - 1]);
    next_ = 0, left_ = kWords;
  }

  uint32_t words_[kWords];
  int next_, left_;
};

// A number in [0, 1) is made of 53 bits: the lower ones of two words, the first of which is the
// upper one.
inline void draw_bernoulli(const BernoulliRequest& request) {
  MersenneTwister twister(*request.state);
  const uint64_t below = uint64_t(std::ceil(request.p * 0x1p53));
  uint32_t words[MersenneState::kWords + 1];  // one may be left from before
  int have = 0;
  for (int64_t done = 0; done < request.size;) {
    have += twister.some(2 * (request.size - done) - have, words + have);
    const int pairs = have / 2;
    uint8_t* const mask = request.mask + done;
    for (int i = 0; i < pairs; ++i) {
      const uint64_t bits = uint64_t(words[2 * i]) << 32 | words[2 * i + 1];
      mask[i] = (bits & ((uint64_t(1) << 53) - 1)) < below;
    }
    done += pairs, words[0] = words[have - 1], have &= 1;
  }
  twister.give_back(*request.state);
}

template <typename T>
void multiply_masked(const MaskedRequest& request, const Parallel& parallel) {
  constexpr int64_t kBlock = 4096;
  const T scale = T(request.scale);
  for_each_index(worth_threads(parallel, request.size), ceil_div(request.size, kBlock),
                 [&](int64_t i) {
                   const int64_t first = i * kBlock, n = min(kBlock, request.size - first);
                   const T* const x = static_cast<const T*>(request.x) + first;
                   const uint8_t* const mask = request.mask + first;
                   T* __restrict const output = static_cast<T*>(request.output) + first;
                   // (What is converted goes by vectors, what is chosen by the compiler does not.)
                   for (int64_t j = 0; j < n; ++j) output[j] = x[j] * (T(int(mask[j])) * scale);
                 });
}

}  // namespace bppsa::BPPSA_ISA
