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

namespace bppsa::cuda {

template <typename acc_t>
struct Trusted {
  static constexpr acc_t huge = acc_t(0x1p60), tiny = acc_t(0x1p-100);
};
template <>
struct Trusted<double> {
  static constexpr double huge = 0x1p500, tiny = 0x1p-900;
};

}  // namespace bppsa::cuda
