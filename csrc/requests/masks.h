// Random masks, and dropout with one.
#pragma once

#include "plan.h"

namespace bppsa {

// A mask: `size` bytes, 1 with probability threshold / 2^32, else 0.
struct MaskRequest {
  uint64_t seed;
  uint32_t threshold;
  int64_t size;
  uint8_t* mask;
};

// The state of PyTorch's generator on a CPU, as far as uniform numbers need it: the beginning of
// what torch.get_rng_state() gives (ATen/CPUGeneratorImpl.cpp, CPUGeneratorImplStateLegacy).
struct MersenneState {
  static constexpr int kWords = 624;
  uint64_t seed;
  int32_t left, seeded;  // left - 1 of the words are still to be given out
  uint64_t next;         // the first of them
  uint64_t words[kWords];
};

// A mask: `size` bytes, 1 with probability p, else 0, as torch.Tensor.bernoulli_(p) draws it.
struct BernoulliRequest {
  MersenneState* state;  // which is then that after them
  double p;
  int64_t size;
  uint8_t* mask;
};

// output = x * scale where the mask is 1, x * 0 elsewhere.
struct MaskedRequest {
  Storage storage;  // f32 or f64
  int64_t size;
  const void* x;
  const uint8_t* mask;
  double scale;
  void* output;
};

}  // namespace bppsa
