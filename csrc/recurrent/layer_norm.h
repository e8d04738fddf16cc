// Layer normalisation of a row of units, forwards and backwards:
//
//   LN(v) = (v - mean v) / sqrt(var v + 1e-5),   z = gain LN(v) + shift
//
// and of the sums of all gates of a sample, block of gates by block (regularised_row.h).
#pragma once

#include "../simd/units.h"
#include "regularised_row.h"

namespace bppsa::BPPSA_ISA {

// Rows that go together: what is added up along a row is one long wait, which others hide.
constexpr int kRowsTogether = 4;

// Calls body(R, row) for all rows, R at a time: kRowsTogether where they may be, or one.
template <class Body>
BPPSA_INLINE void for_some_rows(int64_t rows, bool together, const Body& body) {
  int64_t row = 0;
  for (; together && row + kRowsTogether <= rows; row += kRowsTogether)
    body(Constant<kRowsTogether>{}, row);
  for (; row < rows; ++row) body(Constant<1>{}, row);
}

template <typename T, int R>
struct RowSums {
  Vec<T, kMaxWidth<T>> of[R] = {};

  BPPSA_INLINE void means(int64_t n, T (&to)[R]) const {
    if constexpr (R == 4)
      store<T, 4>(to, four_sums<T, kMaxWidth<T>>(of) / T(n));
    else
      for (int r = 0; r < R; ++r) to[r] = sum<T, kMaxWidth<T>>(of[r]) / T(n);
  }
};

// (v - mean) * scale has variance 1.
template <typename T, int R>
struct Moments {
  T mean[R], scale[R];

  // Of n numbers of each row, from column `first` on.
  BPPSA_INLINE Moments(int64_t n, int64_t first, Rows<const T> v) {
    const auto means_of = [&](T(&to)[R], const auto& f) __attribute__((always_inline)) {
      RowSums<T, R> sums;
      for_each_unit<T>(n, [&](auto units, int64_t k) __attribute__((always_inline)) {
        for (int r = 0; r < R; ++r) sums.of[r] += units.only(f(r, units.load(v[r] + first + k)));
      });
      sums.means(n, to);
    };
    means_of(mean, [](int, auto now) __attribute__((always_inline)) { return now; });
    T var[R];
    means_of(var, [&](int r, auto now)
                      __attribute__((always_inline)) { return (now - mean[r]) * (now - mean[r]); });
    for (int r = 0; r < R; ++r) scale[r] = 1 / T(__builtin_sqrt(var[r] + T(1e-5)));
  }
};

// The gradient of v from g, that of LN(v), of R rows.
template <typename T, int R>
struct Centred {
  T mean[R], moment[R], scale[R];  // means of g, and of g LN(v)

  template <class V>
  BPPSA_INLINE V of(int r, V g, V normal) const {
    return scale[r] * (g - mean[r] - normal * moment[r]);
  }
};

// Rows of all gates' sums, as they lie; gains, shifts and their gradients are rows as well.
template <class Cell, typename T>
struct NormalisedSums {
  using V = Vec<T, kMaxWidth<T>>;
  using Blocks = Normalised<Cell>;
  static constexpr int kBlocks = Blocks::kBlocks;

  const int64_t H;

  // Whether some rows stay in the first-level cache, with what else a step has of them.
  bool together() const { return Cell::kGates * H * int64_t(sizeof(T)) < 4096; }
  int64_t at_a_time() const { return together() ? kRowsTogether : 1; }

  // n = LN(v), perhaps in the place of v, and the scales of its blocks; z = gain n + shift, if z
  // is anything. Null shift for none.
  void forward(int64_t rows, Rows<const T> v, Rows<T> n, Rows<T> scales, const T* gain,
               const T* shift, Rows<T> z) const {
    for_some_rows(rows, together(), [&](auto some, int64_t row) __attribute__((always_inline)) {
      constexpr int R = decltype(some)::value;
      for (int block = 0; block < kBlocks; ++block) {
        const int64_t first = Blocks::begin(block) * H, count = Blocks::gates(block) * H;
        const Moments<T, R> of(count, first, v.from(row));
        for (int r = 0; r < R; ++r) scales[row + r][block] = of.scale[r];
        for_each_unit<T>(count, [&](auto units, int64_t k) __attribute__((always_inline)) {
          V gains{}, shifts{};
          if (z) gains = units.load(gain + first + k);
          if (z && shift) shifts = units.load(shift + first + k);
          for (int r = 0; r < R; ++r) {
            const V normal = (units.load(v[row + r] + first + k) - of.mean[r]) * of.scale[r];
            if (n) units.store(n[row + r] + first + k, normal);
            if (z) units.store(z[row + r] + first + k, gains * normal + shifts);
          }
        });
      }
    });
  }

  // d, the gradient of z, becomes that of v; those of gain and shift are added.
  void backward(int64_t rows, Rows<T> d, Rows<const T> normal, Rows<const T> scales, const T* gain,
                T* of_gain, T* of_shift) const {
    for_some_rows(rows, together(), [&](auto some, int64_t row) __attribute__((always_inline)) {
      constexpr int R = decltype(some)::value;
      for (int block = 0; block < kBlocks; ++block) {
        const int64_t first = Blocks::begin(block) * H, count = Blocks::gates(block) * H;
        RowSums<T, R> means, moments;
        for_each_unit<T>(count, [&](auto units, int64_t k) __attribute__((always_inline)) {
          const V gains = units.load(gain + first + k);
          V to_gain = units.load(of_gain + first + k), to_shift = units.load(of_shift + first + k);
          for (int r = 0; r < R; ++r) {
            const V g = units.load(d[row + r] + first + k);
            const V n = units.load(normal[row + r] + first + k), of_normal = g * gains;
            to_shift += g;
            to_gain += g * n;
            means.of[r] += units.only(of_normal);
            moments.of[r] += units.only(of_normal * n);
          }
          units.store(of_gain + first + k, to_gain);
          units.store(of_shift + first + k, to_shift);
        });
        Centred<T, R> back;
        means.means(count, back.mean);
        moments.means(count, back.moment);
        for (int r = 0; r < R; ++r) back.scale[r] = scales[row + r][block];
        for_each_unit<T>(count, [&](auto units, int64_t k) __attribute__((always_inline)) {
          const V gains = units.load(gain + first + k);
          for (int r = 0; r < R; ++r) {
            T* const to = d[row + r] + first + k;
            units.store(
                to, back.of(r, units.load(to) * gains, units.load(normal[row + r] + first + k)));
          }
        });
      }
    });
  }
};

}  // namespace bppsa::BPPSA_ISA
