// The vanilla RNN cell: h_t = phi(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh), phi = tanh or relu.
//
// Its transposed Jacobian is kept in structure, J_t^T = W_hh^T diag(phi'(z_t)), and phi' is
// had from the output, so the backward needs no more than the output itself. As rows:
// g_{t-1} = (g_t * phi'(z_t)) W_hh + u_{t-1}, one product for all samples of a group. The
// bracket is grad_z_t, from which every parameter gradient is one GEMM over time and batch.
#pragma once

#include "../cpu/kernels.h"
#include "../cpu/tanh.h"
#include "../cpu/tile.h"
#include "../scan/workspace.h"

namespace bppsa::BPPSA_ISA {

// phi'(z) * g. For relu a choice, not a product, as in torch: 0 * inf would make a NaN.
template <typename T, Nonlinearity phi>
BPPSA_INLINE T times_slope(T kept, T g) {
  if constexpr (phi == Nonlinearity::tanh) return (1 - kept * kept) * g;
  if constexpr (phi == Nonlinearity::relu) return kept <= 0 ? T(0) : g;
  return kept * g;
}

template <typename T_, Nonlinearity phi>
struct RnnCell {
  using T = T_;

  const RnnBackwardArgs& args;
  const RowsTimesMatrix<T> product;

  explicit RnnCell(const RnnBackwardArgs& args)
      : args(args), product(rows_times_matrix<T>(args.H)) {}

  int64_t steps() const { return args.T; }
  int64_t batch() const { return args.B; }
  int64_t H() const { return args.H; }
  int64_t scratch(int64_t n) const { return n * H(); }

  const T* kept(int64_t t, int64_t b) const {
    return static_cast<const T*>(args.kept) + ((t - 1) * args.B + b) * args.H;
  }
  // u_t for t = 1 ... T; no gradient reaches h_0 directly.
  const T* direct(int64_t t, int64_t b) const {
    if (!args.grad || t == 0) return nullptr;
    return static_cast<const T*>(args.grad) + (t - 1) * args.grad_stride[0] +
           b * args.grad_stride[1];
  }

  void last(int64_t b, int64_t n, T* g) const {
    for (int64_t r = 0; r < n; ++r) {
      const T* u = args.T > 0 ? direct(args.T, b + r) : nullptr;
      const T* v = args.grad_last ? static_cast<const T*>(args.grad_last) + (b + r) * H() : nullptr;
      for (int64_t h = 0; h < H(); ++h) g[r * H() + h] = (u ? u[h] : T(0)) + (v ? v[h] : T(0));
    }
  }

  void first(int64_t b, int64_t n, const T* g) const {
    std::memcpy(static_cast<T*>(args.grad_h0) + b * H(), g, n * H() * sizeof(T));
  }

  template <bool Final>
  void step(int64_t t, int64_t b, int64_t n, const T* g, T* out, T* scratch) const {
    const T* h = kept(t, b);
    T* d = Final ? static_cast<T*>(args.grad_z) + ((t - 1) * args.B + b) * H() : scratch;
    for (int64_t i = 0; i < n * H(); ++i) d[i] = times_slope<T, phi>(h[i], g[i]);
    product(n, H(), H(), d, static_cast<const T*>(args.w_hh), direct(t - 1, b), args.grad_stride[1],
            out);
  }

  void materialise(int64_t t, int64_t b, T* P) const {
    const T* h = kept(t, b);
    const T* w = static_cast<const T*>(args.w_hh);
    for (int64_t r = 0; r < H(); ++r)
      for (int64_t c = 0; c < H(); ++c) P[r * H() + c] = times_slope<T, phi>(h[r], w[r * H() + c]);
  }

  void compose(int64_t t, int64_t b, int64_t rows, const T* P, T* out, T* scratch) const {
    const T* h = kept(t, b);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < H(); ++c)
        scratch[r * H() + c] = times_slope<T, phi>(h[c], P[r * H() + c]);
    product(rows, H(), H(), scratch, static_cast<const T*>(args.w_hh), nullptr, 0, out);
  }
};

template <typename T, int W, Nonlinearity phi>
BPPSA_INLINE Vec<T, W> activate(Vec<T, W> z) {
  if constexpr (phi == Nonlinearity::tanh) return tanh<T, W>(z);
  // As torch's relu: a NaN stays a NaN.
  return select<T, W>(z < T(0), Vec<T, W>{}, z);
}

// All T steps of samples [b, b + n), the state never leaving the cache.
template <typename T, int W, Nonlinearity phi>
inline void rnn_forward_group(const RnnForwardArgs& args, const T* w_ih_t, const T* w_hh_t,
                              const T* bias, int64_t b, int64_t n) {
  const int64_t H = args.H;
  T* output = static_cast<T*>(args.output);
  const T* h = args.h0 ? static_cast<const T*>(args.h0) + b * H : nullptr;
  for (int64_t t = 0; t < args.T; ++t) {
    const T* x = static_cast<const T*>(args.x) + t * args.x_stride[0] + b * args.x_stride[1];
    T* out = output + (t * args.B + b) * H;
    for_each_tile<T, W>(n, H, [&](auto& tile) __attribute__((always_inline)) {
      tile.clear();
      if (h) tile.multiply_add(H, h, H, w_hh_t, H);
      tile.multiply_add(args.I, x, args.x_stride[1], w_ih_t, H);
      tile.add_row(bias);
      tile.map([](Vec<T, W> z) { return activate<T, W, phi>(z); });
      tile.store_rows(out, H);
    });
    h = out;
  }
}

template <typename T, int W, Nonlinearity phi>
inline void rnn_forward(const RnnForwardArgs& args, const Parallel& parallel) {
  const int64_t H = args.H, I = args.I;
  Buffer<T> weights((I + H + 1) * H);
  T* w_ih_t = weights.data;
  T* w_hh_t = w_ih_t + I * H;
  T* bias = w_hh_t + H * H;
  const T* w_ih = static_cast<const T*>(args.w_ih);
  const T* w_hh = static_cast<const T*>(args.w_hh);
  const T* b_ih = static_cast<const T*>(args.b_ih);
  const T* b_hh = static_cast<const T*>(args.b_hh);
  for (int64_t j = 0; j < H; ++j) {
    for (int64_t i = 0; i < I; ++i) w_ih_t[i * H + j] = w_ih[j * I + i];
    for (int64_t k = 0; k < H; ++k) w_hh_t[k * H + j] = w_hh[j * H + k];
    bias[j] = (b_ih ? b_ih[j] : T(0)) + (b_hh ? b_hh[j] : T(0));
  }
  const Groups groups(args.B, parallel.threads);
  for_each_index(parallel, groups.count, [&](int64_t i) {
    rnn_forward_group<T, W, phi>(args, w_ih_t, w_hh_t, bias, groups.begin(i), groups.size(i));
  });
}

}  // namespace bppsa::BPPSA_ISA
