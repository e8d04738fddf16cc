#pragma once
// What a segment does to one element: the map (product, shift), kept in double. It is trusted,
// element by element, by the rule of scan/trust.h; where it is not, the segment is walked.

#include "../../scan/trust.h"
#include "../device/numbers.cuh"

namespace bppsa::cuda {

// The map of one element over one segment, and the least magnitude its product had on the way.
struct ElementMap {
  double product = 1, shift = 0, least = 1;

  BPPSA_DEVICE void append(double a, double u) {
    product *= a;
    shift = a * shift + u;
    least = fabs(product) < least ? fabs(product) : least;
  }
  /// The map of this segment, then that of the one to its left.
  BPPSA_DEVICE ElementMap then(const ElementMap& left) const {
    const double least_left = fabs(product) * left.least;
    return {left.product * product, left.product * shift + left.shift,
            least_left < least ? least_left : least};
  }
  template <typename acc_t>
  BPPSA_DEVICE bool apply(acc_t g, acc_t& out) const {
    out = static_cast<acc_t>(product * g + shift);
    return fabs(product) <= TrustedElement<acc_t>::large && out - out == 0 &&
           (least >= TrustedElement<acc_t>::tiny || fabs(g) <= 1);
  }
};

// Maps of the nodes of one level: element e of node k.
struct ElementMaps {
  double* data;
  int64_t nodes, count;

  static int64_t size(int64_t nodes, int64_t count) { return 3 * nodes * count; }
  BPPSA_DEVICE ElementMap load(int64_t k, int64_t e) const {
    const double* const p = data + k * count + e;
    return {p[0], p[nodes * count], p[2 * nodes * count]};
  }
  BPPSA_DEVICE void store(int64_t k, int64_t e, const ElementMap& map) const {
    double* const p = data + k * count + e;
    p[0] = map.product;
    p[nodes * count] = map.shift;
    p[2 * nodes * count] = map.least;
  }
};

}  // namespace bppsa::cuda
