// Which windows were begun with what they should have been begun with (scan/met.h), on a CPU.
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

// The tensor itself if each t[i] is contiguous, else a contiguous copy.
inline Tensor in_rows(const Tensor& t) {
  int64_t within = 1;
  for (int64_t d = t.dim() - 1; d > 0; within *= t.size(d--))
    if (t.size(d) != 1 && t.stride(d) != within) return torch::stable::contiguous(t);
  return t;
}

// Returns, for each of n pairs of states, (n, B, ...) each, 1 if they have met, else 0.
//   level (...), size: see StatesNear
inline Ints states_met(const Tensor& guessed, const Tensor& right, const Tensor& level,
                       double size) {
  STD_TORCH_CHECK(right.dim() >= 2 && right.dim() == level.dim() + 2, "level: found ", level.dim(),
                  " dimensions, wanted two less than the ", right.dim(), " of states");
  bool same = guessed.dim() == right.dim() && guessed.scalar_type() == right.scalar_type() &&
              level.scalar_type() == right.scalar_type();
  for (int64_t d = 0; same && d < right.dim(); ++d)
    same = guessed.size(d) == right.size(d) && (d < 2 || level.size(d - 2) == right.size(d));
  STD_TORCH_CHECK(same,
                  "guessed, right, level: wanted one dtype, two shapes (n, B, ...), and (...)");
  real_storage(right, "right");
  const int64_t n = right.size(0), B = right.size(1), units = level.numel();
  Ints met(n, 1);
  const Tensor a = in_rows(guessed), b = in_rows(right), levels = torch::stable::contiguous(level);
  with_numbers_of(right, [&](auto number) {
    using T = decltype(number);
    const StatesNear<T> near{data<T>(levels), T(size)};
    for (int64_t i = 0; i < n * B; ++i) {
      const int64_t k = i / B, of_sample = i % B * units;
      if (!all_near(data<T>(a) + k * a.stride(0) + of_sample,
                    data<T>(b) + k * b.stride(0) + of_sample, units, near))
        met[k] = 0;
    }
  });
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
