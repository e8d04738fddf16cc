#pragma once
// What the phases of a scan hand to each other of a chain's segments.

#include <algorithm>

#include "../scan/tree.h"
#include "launcher.cuh"
#include "numbers.cuh"

namespace bppsa::cuda {

/// Whole trees, of as many samples at a time as scratch has room for, with `bytes` for each node.
inline TreeParts whole_trees(const Tree& tree, int64_t batch, int64_t bytes,
                             const Launcher& launch) {
  const auto room = static_cast<int64_t>(launch.scratch_limit) / bytes;
  return {tree.roots(), std::clamp<int64_t>(room / tree.nodes_before(tree.levels), 1, batch)};
}

// The carry of a segment, g at its end: N numbers for each segment k and sample b.
template <typename T>
struct Carries {
  T* data;
  int64_t B;
  int N;

  BPPSA_BOTH T* operator()(int64_t k, int64_t b) const { return data + (k * B + b) * N; }
  BPPSA_BOTH explicit operator bool() const { return data != nullptr; }
};

// The product (A | b) of a segment's steps: column by column, N rows in each of N + 1 columns. A
// *node* is a segment whose carry another segment is waiting for, or a run of such segments.
template <typename T>
struct Products {
  T* data;
  int64_t nodes, B;
  int N;

  BPPSA_BOTH int64_t size() const { return int64_t{N} * (N + 1); }
  BPPSA_BOTH T* operator()(int64_t k, int64_t b) const { return data + (k * B + b) * size(); }
};

}  // namespace bppsa::cuda
