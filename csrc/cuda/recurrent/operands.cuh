#pragma once
// Matrices that are multiplied over all steps (gemm.cuh), and which way they are summed.

#include "gemm.cuh"
#include "views.cuh"

namespace bppsa::cuda {

template <typename Real>
struct RowMajor {
  const Real* data;
  int64_t pitch;
  BPPSA_DEVICE Real operator()(int64_t row, int64_t column) const {
    return data[row * pitch + column];
  }
};

template <typename Real>
struct StepInputs {  // [h_{t-1} | x_t | 1], a row for each step and sample
  const Real *output, *h0;
  Inputs<Real> x;
  int64_t rows;  // T * B
  int H, I;
  bool reverse;

  BPPSA_DEVICE Real operator()(int64_t row, int64_t n) const {
    if (n < H) {
      const int64_t before = reverse ? row + x.B : row - x.B;
      if (before >= 0 && before < rows) return output[before * H + n];
      return h0 ? h0[(reverse ? before - rows : row) * H + n] : Real(0);
    }
    return n < H + I ? x(row, n - H) : Real(1);
  }
};

template <typename Real>
StepInputs<Real> step_inputs(const BackwardView<Real>& view, const Inputs<Real>& x, int I) {
  return {view.tape.output, view.tape.h0, x, view.T * view.B, view.H, I, view.reverse};
}

// An operand whose sums run along the rows of a matrix: of C = M Nᵀ both, of C = M N the left one.
template <class Matrix>
struct AlongRows {
  static constexpr bool kAlongK = true;
  Matrix matrix;
  BPPSA_DEVICE auto operator()(int64_t k, int64_t m) const { return matrix(m, k); }
};

// One whose sums run along the columns.
template <class Matrix>
struct AlongColumns {
  static constexpr bool kAlongK = false;
  Matrix matrix;
  BPPSA_DEVICE auto operator()(int64_t k, int64_t m) const { return matrix(k, m); }
};

template <typename Real>
AlongRows<RowMajor<Real>> along_rows(const Real* data, int64_t pitch) {
  return {{data, pitch}};
}
template <typename Real>
AlongColumns<RowMajor<Real>> along_columns(const Real* data, int64_t pitch) {
  return {{data, pitch}};
}

}  // namespace bppsa::cuda
