// C = A B by a plan (symbolic.h): each product is added at a place known beforehand, in a row of C
// that stays in the cache. Rows in parallel; a row always sums in the same order.
#pragma once

#include "../requests/jacobians.h"
#include "../simd/parallel.h"
#include "../simd/vec.h"

namespace bppsa::BPPSA_ISA {

// Row i of sample s, whose values are contiguous. In order: no two products meet and columns
// ascend, so that the row is written from left to right.
template <typename T, typename P, bool kInOrder>
void multiply_row(const NumericRequest& request, int64_t i, int64_t s) {
  const T* a_values = static_cast<const T*>(request.a_values) + s * request.a_stride.sample;
  const T* b_values = static_cast<const T*>(request.b_values) + s * request.b_stride.sample;
  T* __restrict__ c = static_cast<T*>(request.values) + s * request.stride.sample + request.crow[i];
  const int32_t begin = request.a.crow[i], end = request.a.crow[i + 1];
  if (kInOrder && request.b_single) {
    for (int32_t j = begin; j < end; ++j) *c++ = a_values[j] * b_values[request.a.col[j]];
    return;
  }
  const P* __restrict__ place = nullptr;
  if constexpr (!kInOrder) {
    place = static_cast<const P*>(request.positions) + request.program[i];
    std::memset(c, 0, (request.crow[i + 1] - request.crow[i]) * sizeof(T));
  }
  for (int32_t j = begin; j < end; ++j) {
    const T a = a_values[j];
    const int32_t k = request.a.col[j], n = request.b.crow[k + 1] - request.b.crow[k];
    const T* __restrict__ b = b_values + request.b.crow[k];
    if constexpr (kInOrder) {
      for (int32_t p = 0; p < n; ++p) c[p] = a * b[p];
      c += n;
    } else {
      for (int32_t p = 0; p < n; ++p) c[place[p]] += a * b[p];
      place += n;
    }
  }
}

template <typename T, typename P>
void multiply_sample_by_sample(const NumericRequest& request, const Parallel& parallel) {
  for_each_index(parallel, request.rows, [&](int64_t i) {
    for (int64_t s = 0; s < request.batch; ++s)
      request.program[i] < 0 ? multiply_row<T, P, true>(request, i, s)
                             : multiply_row<T, P, false>(request, i, s);
  });
}

// Samples side by side in a register: values of C lie (entry, sample). Operands lie likewise, or
// are shared by all samples.
template <typename T, int W, bool kSharedA, bool kSharedB, typename P>
void multiply_row_of_batch(const NumericRequest& request, int64_t i) {
  const T *a_values = static_cast<const T*>(request.a_values),
          *b_values = static_cast<const T*>(request.b_values);
  T* c = static_cast<T*>(request.values) + request.crow[i] * request.stride.entry;
  const int32_t size = request.crow[i + 1] - request.crow[i];
  const int64_t B = request.batch, ld = request.stride.entry;
  const bool in_order = request.program[i] < 0;
  const P* place =
      in_order ? nullptr : static_cast<const P*>(request.positions) + request.program[i];
  // The last vector of samples overlaps the one before it: it sums all of its lanes again.
  for (int64_t v = 0; v < B; v += W) {
    const int64_t s = min(v, B - W);
    if (!in_order)
      for (int32_t e = 0; e < size; ++e) store<T, W>(c + e * ld + s, Vec<T, W>{});
    int64_t q = 0;
    for (int32_t j = request.a.crow[i]; j < request.a.crow[i + 1]; ++j) {
      const T* at = a_values + j * request.a_stride.entry;
      const Vec<T, W> a = kSharedA ? splat<T, W>(*at) : load<T, W>(at + s);
      const int32_t k = request.a.col[j];
      for (int32_t p = request.b.crow[k]; p < request.b.crow[k + 1]; ++p, ++q) {
        const T* bt = b_values + p * request.b_stride.entry;
        const Vec<T, W> product = a * (kSharedB ? splat<T, W>(*bt) : load<T, W>(bt + s));
        if (in_order) {
          store<T, W>(c + q * ld + s, product);
        } else {
          T* at_c = c + int64_t(place[q]) * ld + s;
          store<T, W>(at_c, load<T, W>(at_c) + product);
        }
      }
    }
  }
}

template <typename T, typename P>
void multiply_side_by_side(const NumericRequest& request, const Parallel& parallel) {
  with_width<T>(best_width<T>(request.batch), [&]<int W>(Constant<W>) {
    const bool a = request.a_stride.sample == 0, b = request.b_stride.sample == 0;
    const auto row = a ? (b ? multiply_row_of_batch<T, W, true, true, P>
                            : multiply_row_of_batch<T, W, true, false, P>)
                       : (b ? multiply_row_of_batch<T, W, false, true, P>
                            : multiply_row_of_batch<T, W, false, false, P>);
    for_each_index(parallel, request.rows, [&](int64_t i) { row(request, i); });
  });
}

template <typename T>
void multiply_as(const NumericRequest& request, const Parallel& parallel) {
  if (request.side_by_side)
    request.wide ? multiply_side_by_side<T, uint32_t>(request, parallel)
                 : multiply_side_by_side<T, uint16_t>(request, parallel);
  else
    request.wide ? multiply_sample_by_sample<T, uint32_t>(request, parallel)
                 : multiply_sample_by_sample<T, uint16_t>(request, parallel);
}

// out = A x, samples side by side.
template <typename T, int W, bool kShared>
void apply_row(const ApplyRequest& request, int64_t i) {
  const T* values = static_cast<const T*>(request.values);
  const T* x = static_cast<const T*>(request.x);
  T* out = static_cast<T*>(request.out) + i * request.batch;
  for (int64_t v = 0; v < request.batch; v += W) {
    const int64_t s = min(v, request.batch - W);
    Vec<T, W> sum = {};
    for (int32_t j = request.a.crow[i]; j < request.a.crow[i + 1]; ++j) {
      const T* at = values + j * request.stride.entry;
      const Vec<T, W> a = kShared ? splat<T, W>(*at) : load<T, W>(at + s);
      sum += a * load<T, W>(x + request.a.col[j] * request.batch + s);
    }
    store<T, W>(out + s, sum);
  }
}

template <typename T>
void apply_as(const ApplyRequest& request, const Parallel& parallel) {
  with_width<T>(best_width<T>(request.batch), [&]<int W>(Constant<W>) {
    const auto row = request.stride.sample == 0 ? apply_row<T, W, true> : apply_row<T, W, false>;
    for_each_index(parallel, request.rows, [&](int64_t i) { row(request, i); });
  });
}

}  // namespace bppsa::BPPSA_ISA
