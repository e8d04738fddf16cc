#pragma once
// Operands and results of the products over all steps (gemm.cuh).

#include "gemm.cuh"
#include "views.cuh"

namespace bppsa::cuda {

template <typename Real>
struct GateRows {  // D as the left operand, summed over its rows
  static constexpr bool kAlongK = false;
  const Real* data;
  int64_t pitch;
  BPPSA_DEVICE Real operator()(int64_t k, int64_t m) const { return data[k * pitch + m]; }
};

template <typename Real>
struct StepInputs {  // [h_{t-1} | x_t | 1]
  static constexpr bool kAlongK = false;
  const Real *output, *h0;
  Inputs<Real> x;
  int64_t rows, B;  // rows = T * B
  int H, I;
  bool reverse;

  BPPSA_DEVICE Real operator()(int64_t k, int64_t n) const {
    if (n < H) {
      const int64_t before = reverse ? k + B : k - B;
      if (before >= 0 && before < rows) return output[before * H + n];
      return h0 ? h0[(reverse ? before - rows : k) * H + n] : Real(0);
    }
    return n < H + I ? x(k, n - H) : Real(1);
  }
};

template <typename Real>
struct RowsAlongK {  // the left operand of a product over the numbers of a row
  static constexpr bool kAlongK = true;
  const Real* data;
  int64_t pitch;
  BPPSA_DEVICE Real operator()(int64_t k, int64_t m) const { return data[m * pitch + k]; }
};

template <typename Real>
struct InputsAlongK {
  static constexpr bool kAlongK = true;
  Inputs<Real> x;
  BPPSA_DEVICE Real operator()(int64_t k, int64_t m) const { return x(m, k); }
};

template <typename Real>
struct StepInputsAlongK {  // [h_{t-1} | x_t] of a row
  static constexpr bool kAlongK = true;
  StepInputs<Real> inputs;
  BPPSA_DEVICE Real operator()(int64_t k, int64_t m) const { return inputs(m, k); }
};

template <typename Real>
struct Partials {
  Real* data;
  int64_t M, N;
  BPPSA_DEVICE void operator()(int64_t split, int64_t m, int64_t n, Real value) const {
    data[(split * M + m) * N + n] = value;
  }
};

template <typename Real>
struct RowMajor {
  Real* data;
  int64_t pitch;
  BPPSA_DEVICE void operator()(int64_t, int64_t m, int64_t n, Real value) const {
    data[m * pitch + n] = value;
  }
};

}  // namespace bppsa::cuda
