#pragma once
// A dense chain as the kernels see it: views of memory that own nothing and are passed by value.
//   T steps, B samples, H states; step i maps the vector at i + 1 to the vector at i:
//     g[T] = u[T]        g[i] = A[i] g[i+1] + u[i],   A[i] = (∂x_{i+1}/∂x_i)ᵀ
//
// The A[i] are stored entry by entry. Products of segments are stored that way too, which makes
// them steps of a dense chain.

#include "../device/numbers.cuh"

namespace bppsa::cuda {

// Strides count elements and may be negative (time runs backwards in the adjoint) or zero (expanded
// tensors). Places inside one matrix or vector are counted in 32 bits (the caller sees to it that
// they fit), places of matrices and vectors in 64.

// (T, B, H, H). What is read and what is made of it are apart: an entry is fetched, in the tensor's
// type, long before it is needed.
template <typename scalar_t>
struct Matrices {
  const scalar_t* data;
  int64_t step, sample;
  int row, col;

  BPPSA_DEVICE scalar_t operator()(int64_t i, int r, int c) const {
    return data[i * step + (r * row + c * col)];
  }
  /// Whether neighbours in a row, rather than in a column, are so in memory.
  BPPSA_BOTH bool columns_fast() const { return (col < 0 ? -col : col) <= (row < 0 ? -row : row); }
  /// The same with sample b in the place of sample 0.
  BPPSA_BOTH Matrices from_sample(int64_t b) const {
    return {data + b * sample, step, sample, row, col};
  }
};

// (T + 1, B, H).
template <typename scalar_t>
struct Vectors {
  scalar_t* data;
  int64_t step, sample;
  int row;

  BPPSA_BOTH scalar_t& operator()(int64_t i, int r) const { return data[i * step + r * row]; }
  BPPSA_BOTH Vectors from_sample(int64_t b) const { return {data + b * sample, step, sample, row}; }
};

template <typename scalar_t>
struct DenseChain {
  Matrices<scalar_t> jac_t;      // A
  Vectors<const scalar_t> grad;  // u
  int64_t T, B;
  int H;

  BPPSA_BOTH DenseChain from_sample(int64_t b) const {
    return {jac_t.from_sample(b), grad.from_sample(b), T, B - b, H};
  }
};

}  // namespace bppsa::cuda
