// The dense chain: each step's transposed Jacobian is given as H x H numbers in memory.
#pragma once

#include "../../requests/scans.h"
#include "../../simd/products.h"

namespace bppsa::BPPSA_ISA {

template <typename S>
struct DenseChain {
  using T = typename ComputeOf<S>::type;
  static constexpr bool kWidened = sizeof(S) != sizeof(T);

  const DenseScanRequest& request;
  const int64_t H = request.H;
  // What is read is asked for steps ahead: a processor by itself fetches within a page, or little
  // more. Not what the caches hold, nor matrices of which they do not hold the next one.
  static constexpr int64_t kPage = 4 << 10, kAhead = 16 << 10, kCache = 1 << 20;  // bytes
  const int64_t matrix_bytes = H * H * int64_t(sizeof(S));
  const bool fetches = max(request.jac_stride[2], request.jac_stride[3]) == H &&
                       min(request.jac_stride[2], request.jac_stride[3]) == 1 &&
                       matrix_bytes <= kCache && request.T * request.B * matrix_bytes > kCache;

  const SquareProduct<T> product{H};
  const MatrixTimesVector<S> times_vector = matrix_times_vector<S>(H);

  const S* jac(int64_t t, int64_t b) const {
    return static_cast<const S*>(request.jac_t) + (t - 1) * request.jac_stride[0] +
           b * request.jac_stride[1];
  }

  // The matrix by rows of J (columns of J^T), in memory or gathered into `scratch`.
  const T* jacobian(int64_t t, int64_t b, T* scratch) const {
    const S* p = jac(t, b);
    if constexpr (!kWidened) {
      if (request.jac_stride[2] == 1 && request.jac_stride[3] == H) return p;
    } else if (request.jac_stride[2] == 1) {
      for (int64_t c = 0; c < H; ++c)
        widen_row(H, p + c * request.jac_stride[3], 1, scratch + c * H);
      return scratch;
    }
    for (int64_t r = 0; r < H; ++r)
      for (int64_t c = 0; c < H; ++c)
        scratch[c * H + r] = widen(p[r * request.jac_stride[2] + c * request.jac_stride[3]]);
    return scratch;
  }

  // Likewise the direct gradient of a state.
  const T* direct(int64_t t, int64_t b, T* scratch) const {
    const S* p = static_cast<const S*>(request.grad) + t * request.grad_stride[0] +
                 b * request.grad_stride[1];
    if constexpr (!kWidened)
      if (request.grad_stride[2] == 1) return p;
    widen_row(H, p, request.grad_stride[2], scratch);
    return scratch;
  }

  // A whole matrix at once: not of more than a page, or what is read now would wait.
  BPPSA_INLINE void fetch(const S* j) const {
    if (matrix_bytes <= kPage) prefetch_to_read(j, H * H);
  }

  int64_t steps() const { return request.T; }
  int64_t batch() const { return request.B; }
  int64_t state_width() const { return H; }
  int64_t scratch(int64_t) const { return H * H + H; }

  void keep(int64_t t, int64_t b, const T* g) const {
    S* p = static_cast<S*>(request.out) + t * request.out_step + b * H;
    narrow_row(H, g, p);
  }

  void last(int64_t b, int64_t n, T* g) const {
    for (int64_t r = 0; r < n; ++r) {
      const T* u = direct(request.T, b + r, g + r * H);
      if (u != g + r * H) std::memcpy(g + r * H, u, H * sizeof(T));
    }
  }

  void first(int64_t b, int64_t n, const T* g) const {
    for (int64_t r = 0; r < n; ++r) keep(0, b + r, g + r * H);
  }

  template <bool Final>
  void step(int64_t t, int64_t b, int64_t n, const T* g, T* out, T* scratch) const {
    const int64_t later = fetches ? t - ceil_div(kAhead, n * matrix_bytes) : 0;
    for (int64_t r = 0; r < n; ++r) {
      if constexpr (Final) keep(t, b + r, g + r * H);
      apply(t, b + r, g + r * H, out + r * H, scratch, later > 0 ? jac(later, b + r) : nullptr);
    }
  }

  // `next`, if not null: the matrix to ask for meanwhile.
  void apply(int64_t t, int64_t b, const T* g, T* out, T* scratch, const S* next) const {
    const T* u = direct(t - 1, b, scratch + H * H);
    if (request.jac_stride[3] == 1)
      return times_vector(H, H, {jac(t, b), request.jac_stride[2]}, g, u, out, next);
    if (next) fetch(next);
    product(1, g, jacobian(t, b, scratch), u, out);
  }

  void materialise(int64_t t, int64_t b, T* P) const {
    const T* j = jacobian(t, b, P);
    if (j != P) std::memcpy(P, j, H * H * sizeof(T));
  }

  void compose(int64_t t, int64_t b, int64_t rows, const T* P, T* out, T* scratch) const {
    if (fetches && t > 1) fetch(jac(t - 1, b));
    product(rows, P, jacobian(t, b, scratch), nullptr, out);
  }
};

}  // namespace bppsa::BPPSA_ISA
