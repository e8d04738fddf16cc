#pragma once
// When the product of a segment may stand for its steps.
//
// Products of Jacobians overflow and underflow long before the gradients they act on do, and then
// 0 · inf is a NaN where the gradient is 0. A product (A, b) is trusted with a carry c only if
//   - A and b are finite and max|A| <= huge,
//   - A c + b is finite,
//   - not max|A| < tiny while max|c| > 1: c may bring back what A has lost.
// Where it is not trusted, its segment is walked step by step, which no product can spoil. Nothing
// is clipped and no NaN is hidden: a NaN of the walk is the NaN of plain backpropagation.

#include "walk.cuh"

namespace bppsa::cuda {

template <typename acc_t>
struct Trusted {
  static constexpr acc_t huge = acc_t(0x1p60), tiny = acc_t(0x1p-100);
};
template <>
struct Trusted<double> {
  static constexpr double huge = 0x1p500, tiny = 0x1p-900;
};

// The visit of a walk over products: each carry it reaches is stored, until a product is not
// trusted. Non-finite entries need no test of their own: an infinite one is > huge, a NaN one, and
// any non-finite b, shows in a row of A c + b.
template <typename acc_t>
struct Audit {
  acc_t* carry;  // the carry of node k goes to carry + k * node_stride
  int64_t node_stride;
  int H;
  acc_t peak = 0, carry_peak = 0;
  bool finite = true;

  BPPSA_DEVICE Audit(acc_t* carry, int64_t node_stride, int H)
      : carry(carry), node_stride(node_stride), H(H) {}

  BPPSA_DEVICE void seen(acc_t a, acc_t x) {
    peak = fabs(a) > peak ? fabs(a) : peak;
    carry_peak = fabs(x) > carry_peak ? fabs(x) : carry_peak;
  }
  BPPSA_DEVICE void row(int64_t, int, acc_t y) { finite = finite && y - y == 0; }

  BPPSA_DEVICE bool close(int64_t node, const acc_t* next) {
    bool trusted = !__syncthreads_or(!finite || peak > Trusted<acc_t>::huge);
    if (__syncthreads_and(peak < Trusted<acc_t>::tiny)) {
      trusted = !__syncthreads_or(carry_peak > 1) && trusted;
    }
    if (trusted) {
      for (int r = threadIdx.x; r < H; r += blockDim.x) {
        carry[(node - 1) * node_stride + r] = next[r];
      }
    }
    peak = carry_peak = 0;
    return trusted;
  }
};

}  // namespace bppsa::cuda
