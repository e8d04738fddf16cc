#pragma once
// The type that kernels calculate in, and integers that divide.

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
/// Sums of a tensor's numbers are kept in this type.
template <typename scalar_t>
using Acc = typename Accumulator<scalar_t>::type;

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
