// Results of many steps, in memory that lasts longer than they do.
//
// What a training step frees the next one wants again, in the same sizes. The allocator gives
// megabytes back to the system and takes them anew, in pages that are cleared when they are first
// stored to: on two threads that took as long as the forward of an LSTM itself. So pieces of a
// megabyte and more, on pages of 2 MiB, are kept when their tensor is freed, up to 512 MiB of them.
#pragma once

#include "../operators/tensors.h"

namespace bppsa::cpu {

// A contiguous tensor of like's dtype, uninitialised. (A large one is not resizable.)
Tensor empty_of_steps(const Tensor& like, torch::headeronly::IntHeaderOnlyArrayRef size);
inline Tensor empty_of_steps(const Tensor& like, Sizes size) {
  return empty_of_steps(like, torch::headeronly::IntHeaderOnlyArrayRef(size));
}

}  // namespace bppsa::cpu
