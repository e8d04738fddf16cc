#pragma once
// A chain cut into segments, and what the phases of a scan hand to each other of them.

#include "numbers.cuh"

namespace bppsa::cuda {

// Segment k covers steps first(k) … last(k) - 1.
struct Segments {
  int64_t span, T;

  BPPSA_BOTH int64_t first(int64_t k) const { return k * span; }
  BPPSA_BOTH int64_t last(int64_t k) const { return smaller((k + 1) * span, T); }
};

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
