#pragma once
// The dense cell: its transposed Jacobians are stored, entry by entry, in a (T, B, H, H) tensor of
// any strides. Products of segments are stored that way too, which makes them steps of a dense
// chain. Places inside one matrix are counted in 32 bits (the caller sees to it that they fit),
// places of matrices in 64.

#include "chain.cuh"

namespace bppsa::cuda {

template <typename scalar>
struct DenseCell {
  using scalar_t = scalar;
  using acc_t = typename Accumulator<scalar_t>::type;
  using Raw = scalar_t;

  const scalar_t* data;
  int64_t step, sample;  // strides
  int row, col;

  BPPSA_DEVICE Raw fetch(int64_t i, int r, int c) const {
    return data[i * step + (r * row + c * col)];
  }
  BPPSA_DEVICE static acc_t value(Raw raw) { return static_cast<acc_t>(raw); }
  BPPSA_DEVICE static Raw none() { return static_cast<Raw>(0.f); }

  BPPSA_BOTH bool columns_fast() const { return (col < 0 ? -col : col) <= (row < 0 ? -row : row); }
  BPPSA_BOTH DenseCell from_sample(int64_t b) const {
    return {data + b * sample, step, sample, row, col};
  }
};

// The adjoint, g[i+1] = jac_t[i]ᵀ g[i] + grad[i+1], is the same recurrence read from the other end:
// time strides change sign, rows and columns change places.

template <typename scalar_t>
DenseCell<scalar_t> adjoint_of(const DenseCell<scalar_t>& cell, int64_t T) {
  return {cell.data + (T > 0 ? T - 1 : 0) * cell.step, -cell.step, cell.sample, cell.col, cell.row};
}

template <typename scalar_t>
Vectors<scalar_t> adjoint_of(const Vectors<scalar_t>& vectors, int64_t T) {
  return {vectors.data + T * vectors.step, -vectors.step, vectors.sample, vectors.row};
}

}  // namespace bppsa::cuda
