#pragma once
// Sigmoid and tanh for the inner loop of a recurrence: short, branch-free, within about two units
// in the last place of their largest value, which is what PyTorch's float32 has too. (tanh.approx
// would be faster, and wrong in the eleventh bit.)

#include "platform.cuh"

namespace bppsa::cuda {

BPPSA_DEVICE float sigmoid(float x) { return __fdividef(1.f, 1.f + __expf(-x)); }
BPPSA_DEVICE double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

/// |x| < 0.625: the odd polynomial of the Cephes library; otherwise 1 - 2 / (exp(2|x|) + 1). Both
/// are computed side by side and one is chosen. A NaN stays a NaN.
BPPSA_DEVICE float tanh_of(float x) {
  const float a = fabsf(x), z = x * x;
  const float large = copysignf(1.f - __fdividef(2.f, __expf(2.f * a) + 1.f), x);
  float p = -5.70498872745e-3f;
  p = fmaf(p, z, 2.06390887954e-2f);
  p = fmaf(p, z, -5.37397155531e-2f);
  p = fmaf(p, z, 1.33314422036e-1f);
  p = fmaf(p, z, -3.33332819422e-1f);
  return a < 0.625f ? fmaf(p * z, x, x) : large;
}
BPPSA_DEVICE double tanh_of(double x) { return tanh(x); }

// What a cell's formula is written in, beside arithmetic (cells/cell.h).
template <typename Real>
struct ScalarMath {
  BPPSA_DEVICE static Real tanh(Real x) { return tanh_of(x); }
  BPPSA_DEVICE static Real sigmoid(Real x) { return cuda::sigmoid(x); }
  BPPSA_DEVICE static Real select(bool which, Real a, Real b) { return which ? a : b; }
};

}  // namespace bppsa::cuda
