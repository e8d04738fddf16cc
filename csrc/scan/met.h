// Whether what windows were begun with is what they should have been begun with, as far as rounding
// goes: number by number, on every device. In plain torch, and why:
// bppsa_lightning/windows/levels.py.
#pragma once

#include <cstdint>
#include <limits>

#ifdef __CUDACC__
#define BPPSA_ANYWHERE __host__ __device__ constexpr
#else
#define BPPSA_ANYWHERE constexpr
#endif

namespace bppsa {

// How many walks' roundings two walks may be apart, and how many spacings of their numbers.
constexpr int kWalksApart = 3, kSpacings = 4;
// States that many times smaller than the largest are as usual as those.
constexpr int kOrdinary = 4;

template <typename T>
struct Spacing {
  static constexpr T most = std::numeric_limits<T>::max(), tiny = std::numeric_limits<T>::min(),
                     eps = std::numeric_limits<T>::epsilon();
};

template <typename T>
BPPSA_ANYWHERE T magnitude(T a) {
  return a < 0 ? -a : a;
}
template <typename T>
BPPSA_ANYWHERE T larger(T a, T b) {  // NaN if one is
  return a > b || a != a ? a : b;
}

// States: per unit how far a walk is from the truth (`level`), where states are as large as `size`.
template <typename T>
struct StatesNear {
  const T* level;
  T size;

  // What `near` is told of a sample, from the largest number of its state.
  BPPSA_ANYWHERE T of_sample(T largest) const {
    const T share = largest * (kWalksApart * kOrdinary / larger(size, T(1e-30)));
    return share > kWalksApart ? T(kWalksApart) : share;
  }
  BPPSA_ANYWHERE bool near(T a, T b, T share, int64_t unit) const {
    const T rounding = kSpacings * Spacing<T>::eps * magnitude(b) + share * level[unit];
    const T least = rounding > Spacing<T>::most ? Spacing<T>::most : rounding;
    // Infinite ones are equal, if at all, and NaN is near to NaN.
    return magnitude(a - b) <= least || a == b || (a != a && b != b);
  }
};

// Gradients: within `roundings` of their sizes, those of the sample and those of the unit.
template <typename T>
struct GradientsNear {
  const T* of_unit;
  T roundings;

  BPPSA_ANYWHERE T of_sample(T largest) const { return largest; }
  BPPSA_ANYWHERE bool near(T a, T b, T largest, int64_t unit) const {
    const T smaller = of_unit[unit] < largest ? of_unit[unit] : largest;
    const T size = kWalksApart * roundings * Spacing<T>::eps * larger(smaller, Spacing<T>::tiny);
    const T least = size > Spacing<T>::most ? Spacing<T>::most : larger(size, Spacing<T>::tiny);
    return magnitude(a - b) <= least;
  }
};

}  // namespace bppsa
