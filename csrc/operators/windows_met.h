// Which windows were begun with what they should have been begun with (scan/met.h): one sample of a
// CPU.
#pragma once

#include "../scan/met.h"
#include "tensors.h"

namespace bppsa {

template <typename T>
T largest(const T* numbers, int64_t n) {
  T found = 0;
  for (int64_t i = 0; i < n; ++i) found = larger(found, magnitude(numbers[i]));
  return found;
}

// Of one sample's n numbers.
template <typename T, class Near>
bool all_near(const T* guessed, const T* right, int64_t n, const Near& near) {
  const T of_sample = near.of_sample(largest(right, n));
  bool met = true;
  for (int64_t i = 0; i < n; ++i) met = met && near.near(guessed[i], right[i], of_sample, i);
  return met;
}

// Of gradients (windows, n): whether each that a window's end was given, guessed[k], is the one
// that arrived at the next one's start, right[k + 1].
template <typename T>
void gradients_met(const T* guessed, const T* right, T roundings, int64_t windows, int64_t n,
                   int32_t* met) {
  std::vector<T> of_unit(n, T(0));
  for (int64_t k = 1; k < windows; ++k)
    for (int64_t i = 0; i < n; ++i) of_unit[i] = larger(of_unit[i], magnitude(right[k * n + i]));
  for (int64_t k = 1; k < windows; ++k) {
    const GradientsNear<T> near{of_unit.data(), roundings};
    if (!all_near(guessed + (k - 1) * n, right + k * n, n, near)) met[k - 1] = 0;
  }
}

}  // namespace bppsa
