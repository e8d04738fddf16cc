#pragma once
// The visit of a walk over products: each carry it reaches is stored, until a product is not
// trusted. A product (A, b) is trusted with a carry c only if
//   - A and b are finite and max|A| <= large,
//   - A c + b is finite,
//   - not max|A| < tiny while max|c| > 1: c may bring back what A has lost,
// with the numbers of scan/trust.h. Non-finite entries need no test of their own: an infinite one
// is > large, a NaN one, and any non-finite b, shows in a row of A c + b.

#include "../../scan/trust.h"
#include "walk.cuh"

namespace bppsa::cuda {

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
    bool trusted = !__syncthreads_or(!finite || peak > TrustedMatrix<acc_t>::large);
    if (__syncthreads_and(peak < TrustedMatrix<acc_t>::tiny)) {
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
