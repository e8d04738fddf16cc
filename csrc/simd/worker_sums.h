// Sums that several workers have added up, each its own: so none depends on which of them came
// first.
#pragma once

#include "lanes.h"
#include "parallel.h"

namespace bppsa::BPPSA_ISA {

template <typename T>
struct WorkerSums {
  int workers;
  int64_t size;  // numbers from one worker's to the next one's

  // W numbers, of which the first worker has its part at `sum`, added up in the workers' order.
  template <int W>
  BPPSA_INLINE Vec<T, W> total(const T* sum) const {
    Vec<T, W> all = load<T, W>(sum);
    for (int w = 1; w < workers; ++w) all += load<T, W>(sum + w * size);
    return all;
  }

  // to[i] = total of sum[i], n of them.
  void write(const T* sum, int64_t n, T* to) const {
    constexpr int W = kMaxWidth<T>;
    int64_t i = 0;
    for (; i + W <= n; i += W) store<T, W>(to + i, total<W>(sum + i));
    for (; i < n; ++i) to[i] = total<1>(sum + i)[0];
  }

  // to[j * ld + i] = total of sum[i * step + j], `count` numbers j of each of `rows` rows i, at
  // most a vector's.
  void write_turned(const T* sum, int64_t step, int64_t rows, int64_t count, T* to,
                    int64_t ld) const {
    constexpr int W = kMaxWidth<T>;
    int64_t j = 0;
    for (; rows == W && j + W <= count; j += W) {
      Vec<T, W> v[W];
      for (int i = 0; i < W; ++i) v[i] = total<W>(sum + i * step + j);
      transpose<T, W>(v);
      for (int i = 0; i < W; ++i) store<T, W>(to + (j + i) * ld, v[i]);
    }
    for (; j < count; ++j)
      for (int64_t i = 0; i < rows; ++i) to[j * ld + i] = total<1>(sum + i * step + j)[0];
  }

  // to (count x rows), transposed: of any number of rows, shared out to threads.
  void write_transposed(const Parallel& parallel, const T* sum, int64_t step, int64_t rows,
                        int64_t count, T* to) const {
    constexpr int64_t W = kMaxWidth<T>;
    for_each_index(worth_threads(parallel, workers * size), ceil_div(rows, W), [&](int64_t n) {
      const int64_t first = n * W;
      write_turned(sum + first * step, step, min(W, rows - first), count, to + first, rows);
    });
  }
};

}  // namespace bppsa::BPPSA_ISA
