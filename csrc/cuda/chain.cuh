#pragma once
// A chain as the kernels see it: views of memory that own nothing and are passed by value.
//   T steps, B samples, H states; step i maps the vector at i + 1 to the vector at i:
//     g[T] = u[T]        g[i] = A[i] g[i+1] + u[i],   A[i] = (∂x_{i+1}/∂x_i)ᵀ
//
// A *cell* supplies the A[i]. It is a struct of plain data with
//   scalar_t, acc_t      types of the tensors and of the arithmetic
//   Raw                  what must be read from memory to know one entry of A[i]
//   fetch(i, row, col)   reads it, for sample 0
//   value(raw)           the number; apart from fetch, which is issued long before it is needed
//   none()               the Raw of an entry that is zero
//   columns_fast()       whether neighbours in a row, rather than in a column, are so in memory
//   from_sample(b)       the same cell with sample b in the place of sample 0
// Everything else (walks, products, trees) knows a cell only through these.

#include <cstdint>

#include "platform.cuh"

namespace bppsa::cuda {

template <typename scalar_t>
struct Accumulator {
  using type = float;
};
template <>
struct Accumulator<double> {
  using type = double;
};

// Vectors over steps and samples. Strides count elements and may be negative (time runs backwards
// in the adjoint) or zero (expanded tensors).
template <typename scalar_t>
struct Vectors {
  scalar_t* data;
  int64_t step, sample;
  int row;

  BPPSA_BOTH scalar_t& operator()(int64_t i, int r) const { return data[i * step + r * row]; }
  BPPSA_BOTH Vectors from_sample(int64_t b) const { return {data + b * sample, step, sample, row}; }
};

template <class Cell>
struct Chain {
  Cell cell;
  Vectors<const typename Cell::scalar_t> grad;  // u
  int64_t T, B;
  int H;

  BPPSA_BOTH Chain from_sample(int64_t b) const {
    return {cell.from_sample(b), grad.from_sample(b), T, B - b, H};
  }
};

template <typename integer>
BPPSA_BOTH constexpr integer ceil_div(integer a, integer b) {
  return (a + b - 1) / b;
}

template <typename integer>
BPPSA_BOTH constexpr integer round_up(integer a, integer multiple) {
  return ceil_div(a, multiple) * multiple;
}

template <typename T>
BPPSA_BOTH constexpr T smaller(T a, T b) {
  return a < b ? a : b;
}

}  // namespace bppsa::cuda
