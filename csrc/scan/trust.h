// How large and how small a product of Jacobians may be for its map to be applied, on every device.
//
// Products overflow and underflow long before gradients do. So a map is applied only if nothing in
// it or in its result has left the range where float arithmetic is sound; otherwise the segment is
// walked step by step from its carry, which is what plain back-propagation does. Nothing is
// clipped, zeroed or inverted.
#pragma once

namespace bppsa {

// Of a product of matrices, its largest element. Above `large` or below `tiny` it is not applied;
// what is tiny may be where the carry is no larger than 1: the walk underflows then as well.
template <typename T>
struct TrustedMatrix;
template <>
struct TrustedMatrix<float> {
  static constexpr float large = 0x1p60f, tiny = 0x1p-100f;
};
template <>
struct TrustedMatrix<double> {
  static constexpr double large = 0x1p500, tiny = 0x1p-900;
};

// Of one element, whose map is kept in double whatever T: `tiny` is for the least magnitude that
// the product had on its way. A product of float32 decays cannot underflow where the walk would not
// have: 2^-1074 times the largest float32 is nothing in float32.
template <typename T>
struct TrustedElement {
  static constexpr double large = 0x1p20, tiny = 0;
};
template <>
struct TrustedElement<double> {
  static constexpr double large = 0x1p20, tiny = 0x1p-900;
};

}  // namespace bppsa
