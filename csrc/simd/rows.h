// Rows of numbers in memory.
#pragma once

#include "isa.h"

namespace bppsa::BPPSA_ISA {

// `ld` apart; ld = 0 repeats one row. Null stands for zeros.
template <typename T>
struct Rows {
  T* data = nullptr;
  int64_t ld = 0;

  T* operator[](int64_t r) const { return data + r * ld; }
  Rows from(int64_t r) const { return {data ? data + r * ld : nullptr, ld}; }
  Rows from_column(int64_t k) const { return {data ? data + k : nullptr, ld}; }
  // Numbers from `column` on of rows from `row` on.
  T* at(int64_t row, int64_t column) const { return data ? data + row * ld + column : nullptr; }
  explicit operator bool() const { return data != nullptr; }
};

template <typename T>
using ConstRows = Rows<const T>;

// Rows of all steps and samples: `step` numbers from one step to the next, `sample` from one sample
// to the next.
template <typename T>
struct StepRows {
  T* data;
  int64_t step, sample;

  // Of step t, from sample b on.
  Rows<T> at(int64_t t, int64_t b) const { return {data + t * step + b * sample, sample}; }
};

// Whether some numbers are zeros; a NaN is none.
template <typename T>
inline bool all_zero(const T* numbers, int64_t count) {
  constexpr int64_t kBlock = 64;
  for (int64_t i = 0; i < count; i += kBlock) {
    int any = 0;  // (without a branch for each number)
    if (i + kBlock <= count)
      for (int64_t j = 0; j < kBlock; ++j) any |= numbers[i + j] != T(0);
    else
      for (int64_t j = i; j < count; ++j) any |= numbers[j] != T(0);
    if (any) return false;
  }
  return true;
}

// Asks for the cache lines of `count` numbers that will soon be written: where another core has
// read them, the store would wait for their return.
template <typename T>
BPPSA_INLINE void prefetch_to_write([[maybe_unused]] const T* first,
                                    [[maybe_unused]] int64_t count) {
#if defined(__x86_64__)
  const char* end = reinterpret_cast<const char*>(first + count);
  for (const char* p = reinterpret_cast<const char*>(first); p < end; p += 64)
    asm volatile("prefetchw %0" : : "m"(*p));
#endif
}

// Asks for `count` numbers that will soon be read.
template <typename T>
BPPSA_INLINE void prefetch_to_read(const T* first, int64_t count) {
  constexpr int64_t kLine = 64 / int64_t(sizeof(T));
  for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(first + i);
}

}  // namespace bppsa::BPPSA_ISA
