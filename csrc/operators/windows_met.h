// Whether what windows were begun with is what they should have been begun with, as far as rounding
// goes. In plain torch, and why: bppsa_lightning/windows/levels.py.
#pragma once

#include <cmath>
#include <limits>

#include "tensors.h"

namespace bppsa {

// How many walks' roundings two walks may be apart, and how many spacings of their numbers.
constexpr int kWalksApart = 3, kSpacings = 4;
// States that many times smaller than the largest are as usual as those.
constexpr int kOrdinary = 4;

template <typename T>
T larger(T a, T b) {  // NaN if one is
  return a > b || a != a ? a : b;
}

template <typename T>
T largest(const T* numbers, int64_t n) {
  T found = 0;
  for (int64_t i = 0; i < n; ++i) found = larger(found, std::abs(numbers[i]));
  return found;
}

// The state of one sample, of n units; per unit how far a walk is from the truth (`level`), where
// states are as large as `size`.
template <typename T>
bool states_met(const T* guessed, const T* right, const T* level, T size, int64_t n) {
  constexpr T most = std::numeric_limits<T>::max(), eps = std::numeric_limits<T>::epsilon();
  const T of_size = largest(right, n) * (kWalksApart * kOrdinary / std::max(size, T(1e-30)));
  const T share = of_size > kWalksApart ? T(kWalksApart) : of_size;
  bool met = true;
  for (int64_t i = 0; i < n; ++i) {
    const T a = guessed[i], b = right[i];
    const T rounding = kSpacings * eps * std::abs(b) + share * level[i];
    const bool near = std::abs(a - b) <= (rounding > most ? most : rounding);
    // Infinite ones are equal, if at all, and NaN is near to NaN.
    met = met && (near || a == b || (a != a && b != b));
  }
  return met;
}

// Of gradients (windows, n): whether each that a window's end was given, guessed[k], is the one
// that arrived at the next one's start, right[k + 1], within `roundings` of their sizes.
template <typename T>
void gradients_met(const T* guessed, const T* right, T roundings, int64_t windows, int64_t n,
                   int32_t* met) {
  constexpr T tiny = std::numeric_limits<T>::min(), most = std::numeric_limits<T>::max();
  const T share = kWalksApart * roundings * std::numeric_limits<T>::epsilon();
  std::vector<T> of_unit(n, T(0));
  for (int64_t k = 1; k < windows; ++k)
    for (int64_t i = 0; i < n; ++i) of_unit[i] = larger(of_unit[i], std::abs(right[k * n + i]));
  for (int64_t k = 1; k < windows; ++k) {
    const T *a = guessed + (k - 1) * n, *b = right + k * n;
    const T of_sample = largest(b, n);
    for (int64_t i = 0; i < n; ++i) {
      const T size = share * std::max(std::min(of_sample, of_unit[i]), tiny);
      const T least = size > tiny ? std::min(size, most) : tiny;
      if (!(std::abs(a[i] - b[i]) <= least)) met[k - 1] = 0;
    }
  }
}

}  // namespace bppsa
