// A matrix that many rows will be multiplied by, of any size.
#pragma once

#include "panels.h"

namespace bppsa::BPPSA_ISA {

// A matrix (K x cols) in panels, whose products are sums of sums: in one of all terms the last
// would be rounded as the whole is.
template <typename T>
class LongMatrix {
 public:
  // m (K x cols), or nothing if it is not `needed`.
  static LongMatrix as_it_lies(int64_t K, int64_t cols, const T* m, bool needed = true) {
    return {K, cols, needed, [&](int64_t first, int64_t count, T* panels) {
              panels_by_rows<T>(
                  count, padded_units<T>(cols), cols,
                  [&](int64_t k) { return m + (first + k) * cols; }, panels);
            }};
  }
  // The transpose of m (cols x K).
  static LongMatrix transposed(int64_t K, int64_t cols, const T* m, bool needed = true) {
    return {K, cols, needed, [&](int64_t first, int64_t count, T* panels) {
              panels_by_columns<T>(
                  count, padded_units<T>(cols),
                  [&](int64_t c) { return c < cols ? m + c * K + first : nullptr; }, panels);
            }};
  }

  static int64_t bytes(int64_t K, int64_t cols) { return K * whole_vectors<T>(cols) * sizeof(T); }

  // out = rows * matrix + addend: n rows of K numbers, n of cols. Null addend for none.
  void multiply(int64_t n, ConstRows<T> rows, ConstRows<T> addend, Rows<T> out) const {
    const int64_t padded = padded_units<T>(cols_);
    const Columns<T, kMaxWidth<T>> columns(padded);
    const bool apart = padded != cols_;  // a row of `out` has no room for the padding
    const Buffer<T> memory(apart ? n * padded : 0);
    const Rows<T> to = apart ? Rows<T>{memory.data, padded} : out;
    for (int64_t k = 0; k < K_; k += kTerms) {
      const ConstRows<T> before = k ? ConstRows<T>{to.data, to.ld} : addend;
      multiply_by_panels<T>(n, min(kTerms, K_ - k), columns, {rows.at(0, k), rows.ld}, part(k),
                            before, k ? padded : cols_, to);
    }
    for (int64_t r = 0; apart && r < n; ++r) std::memcpy(out[r], to[r], cols_ * sizeof(T));
  }

 private:
  // fill(first row, rows, panels)
  template <class Fill>
  LongMatrix(int64_t K, int64_t cols, bool needed, const Fill& fill)
      : K_(K), cols_(cols), panels_(needed ? K * whole_vectors<T>(cols) : 0) {
    for (int64_t k = 0; needed && k < K; k += kTerms) fill(k, min(kTerms, K - k), part(k));
  }

  static constexpr int64_t kTerms = 128;
  T* part(int64_t k) const { return panels_.data + k * whole_vectors<T>(cols_); }

  const int64_t K_, cols_;
  const Buffer<T> panels_;
};

}  // namespace bppsa::BPPSA_ISA
