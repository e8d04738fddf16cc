// The dense cell: each step's transposed Jacobian is given as H x H numbers in memory.
//
// What every cell offers to the scan algorithms (samples [b, b + n), steps t = 1 ... T, all
// vectors and products of the compute type T, rows H apart):
//
//   last(b, n, g)                  g = g_T, the direct gradient of the last state
//   step<Final>(t, b, n, g, out, scratch)
//                                  out = J_t^T g + u_{t-1}; Final: g is the true g_t, so keep
//                                  what the caller of the scan wants of it
//   first(b, n, g)                 g is the true g_0
//   materialise(t, b, P)           P = J_t, as a matrix for row vectors: g_{t-1} = g_t P
//   compose(t, b, rows, P, out, scratch)
//                                  out = P J_t, for `rows` rows
//   scratch(n)                     numbers of scratch that the calls above need
//   product                        rows times an H x H matrix, for maps already composed
#pragma once

#include "../cpu/kernels.h"
#include "../cpu/storage.h"
#include "../cpu/tile.h"

namespace bppsa::BPPSA_ISA {

// out[r] = <m[r][:], g> + u[r]: four rows at a time, m read once in order.
template <typename T, int W>
void matrix_times_vector_of_width(int64_t H, const T* m, int64_t ld, const T* g, const T* u,
                                  T* out) {
  const auto rows = [&](auto count, int64_t r) __attribute__((always_inline)) {
    constexpr int R = decltype(count)::value;
    Vec<T, W> acc[R] = {};
    int64_t c = 0;
    for (; c + W <= H; c += W)
      for (int i = 0; i < R; ++i) acc[i] += load<T, W>(m + (r + i) * ld + c) * load<T, W>(g + c);
    T tail[R] = {};
    for (; c < H; ++c)
      for (int i = 0; i < R; ++i) tail[i] += m[(r + i) * ld + c] * g[c];
    for (int i = 0; i < R; ++i) out[r + i] = (sum<T, W>(acc[i]) + tail[i]) + u[r + i];
  };
  int64_t r = 0;
  for (; r + 4 <= H; r += 4) rows(Width<4>{}, r);
  for (; r < H; ++r) rows(Width<1>{}, r);
}

template <typename T>
using MatrixTimesVector = void (*)(int64_t H, const T* m, int64_t ld, const T* g, const T* u,
                                   T* out);

// Sums can't overlap as a Tile's columns do: the width that leaves the shortest scalar tail.
template <typename T>
inline MatrixTimesVector<T> choose_matrix_times_vector(int64_t H) {
  int best = 1;
  for (int w = 16 / int(sizeof(T)); w <= kMaxWidth<T>; w *= 2)
    if (H / w + H % w <= H / best + H % best) best = w;
  MatrixTimesVector<T> chosen = nullptr;
  with_width<T>(
      best, [&](auto width) { chosen = matrix_times_vector_of_width<T, decltype(width)::value>; });
  return chosen;
}

template <typename S>
struct DenseCell {
  using T = typename ComputeOf<S>::type;
  static constexpr bool kWidened = sizeof(S) != sizeof(T);

  const DenseScanArgs& args;
  const RowsTimesMatrix<T> product;
  const MatrixTimesVector<T> matrix_times_vector;

  explicit DenseCell(const DenseScanArgs& args)
      : args(args),
        product(rows_times_matrix<T>(args.H)),
        matrix_times_vector(choose_matrix_times_vector<T>(args.H)) {}

  const S* jac(int64_t t, int64_t b) const {
    return static_cast<const S*>(args.jac_t) + (t - 1) * args.jac_stride[0] +
           b * args.jac_stride[1];
  }

  // The matrix by rows of J (columns of J^T), in memory or gathered into `scratch`.
  const T* jacobian(int64_t t, int64_t b, T* scratch) const {
    const S* p = jac(t, b);
    if constexpr (!kWidened)
      if (args.jac_stride[2] == 1 && args.jac_stride[3] == H()) return p;
    for (int64_t r = 0; r < H(); ++r)
      for (int64_t c = 0; c < H(); ++c)
        scratch[c * H() + r] = widen(p[r * args.jac_stride[2] + c * args.jac_stride[3]]);
    return scratch;
  }

  int64_t steps() const { return args.T; }
  int64_t batch() const { return args.B; }
  int64_t H() const { return args.H; }
  int64_t scratch(int64_t) const { return H() * H() + H(); }

  void direct(int64_t t, int64_t b, T* u) const {
    const S* p =
        static_cast<const S*>(args.grad) + t * args.grad_stride[0] + b * args.grad_stride[1];
    for (int64_t h = 0; h < H(); ++h) u[h] = widen(p[h * args.grad_stride[2]]);
  }

  void keep(int64_t t, int64_t b, const T* g) const {
    S* p = static_cast<S*>(args.out) + t * args.out_stride[0] + b * args.out_stride[1];
    for (int64_t h = 0; h < H(); ++h) p[h] = narrow<S>(g[h]);
  }

  void last(int64_t b, int64_t n, T* g) const {
    for (int64_t r = 0; r < n; ++r) direct(args.T, b + r, g + r * H());
  }

  void first(int64_t b, int64_t n, const T* g) const {
    for (int64_t r = 0; r < n; ++r) keep(0, b + r, g + r * H());
  }

  template <bool Final>
  void step(int64_t t, int64_t b, int64_t n, const T* g, T* out, T* scratch) const {
    for (int64_t r = 0; r < n; ++r) {
      if constexpr (Final) keep(t, b + r, g + r * H());
      apply(t, b + r, g + r * H(), out + r * H(), scratch);
    }
  }

  void apply(int64_t t, int64_t b, const T* g, T* out, T* scratch) const {
    T* u = scratch + H() * H();
    direct(t - 1, b, u);
    if constexpr (!kWidened)
      if (args.jac_stride[3] == 1)
        return matrix_times_vector(H(), jac(t, b), args.jac_stride[2], g, u, out);
    product(1, H(), H(), g, jacobian(t, b, scratch), u, 0, out);
  }

  void materialise(int64_t t, int64_t b, T* P) const {
    const T* j = jacobian(t, b, P);
    if (j != P) std::memcpy(P, j, H() * H() * sizeof(T));
  }

  void compose(int64_t t, int64_t b, int64_t rows, const T* P, T* out, T* scratch) const {
    product(rows, H(), H(), P, jacobian(t, b, scratch), nullptr, 0, out);
  }
};

}  // namespace bppsa::BPPSA_ISA
