// The gated recurrent unit, as torch's (gates r, z, n):
//
//   r, z = sigmoid(W_i x_t + b_i + W_h h_{t-1} + b_h)
//   q    = W_hn h_{t-1} + b_hn,   n = tanh(W_in x_t + b_in + r q)
//   h_t  = n + z (h_{t-1} - n)
//
// The forward keeps r, z, n, q. With d the gradients of the pre-activations, as rows:
//   d_n = g (1 - z) (1 - n^2)    d_r = d_n q r (1 - r)    d_z = g (h_{t-1} - n) z (1 - z)
//   d_q = d_n r
//   g_{t-1} = g z + [d_r d_z d_q] W_hh + u_{t-1}
// so J_t^T is three weights times diagonals, and diag(z).
#pragma once

#include "../cpu/activations.h"
#include "../recurrent/rows.h"

namespace bppsa::BPPSA_ISA {

template <typename T_>
struct Gru {
  using T = T_;
  static constexpr int kGates = 3;
  // A row of gradients is d_n, d_r, d_z, d_q: the first three go with W_ih, the last with W_hh.
  static constexpr int kBlocks = 4;
  static constexpr int kFromX = 0;
  static constexpr int kFromH = 1;
  static constexpr int gate_of_x(int block) { return (block + 2) % 3; }
  static constexpr int64_t kept_width(int64_t H) { return 4 * H; }
  static constexpr bool kCarriesCell = false;

  template <int W>
  static void forward(const ForwardWeights<T>& w, const ForwardStep<T>& s) {
    using V = Vec<T, W>;
    const int64_t H = w.H;
    for_each_gate_tile<T, W, 3>(s.n, H,
                                [&](auto& tile, int64_t unit) __attribute__((always_inline)) {
                                  constexpr int MR = sizeof(tile.acc) / sizeof(tile.acc[0]);
                                  tile.clear();
                                  if (s.h) tile.multiply_add_panel(H, s.h.data, s.h.ld, w.h);
                                  auto from_x = tile;
                                  from_x.clear();
                                  if (s.x_part)
                                    from_x.add_rows(s.x_part.data, s.x_part.ld);
                                  else
                                    from_x.multiply_add_panel(w.I, s.x.data, s.x.ld, w.x);
                                  from_x.add_row(w.bias);
                                  const V bias_q = load<T, W>(w.bias_q + unit);
                                  for (int i = 0; i < MR; ++i) {
                                    const int64_t row = tile.row + i;
                                    const V q = tile.acc[i][2] + bias_q;
                                    const V r = sigmoid<T, W>(tile.acc[i][0] + from_x.acc[i][0]);
                                    const V z = sigmoid<T, W>(tile.acc[i][1] + from_x.acc[i][1]);
                                    const V n = tanh<T, W>(from_x.acc[i][2] + r * q);
                                    const V h = s.h ? load<T, W>(s.h[row] + unit) : V{};
                                    store<T, W>(s.out[row] + unit, n + z * (h - n));
                                    if (s.kept) {
                                      T* kept = s.kept[row] + unit;
                                      store<T, W>(kept, r);
                                      store<T, W>(kept + H, z);
                                      store<T, W>(kept + 2 * H, n);
                                      store<T, W>(kept + 3 * H, q);
                                    }
                                  }
                                });
  }

  template <int W>
  static void backward(const Layer<T>& layer, const Multiplier<T>& times_w_hh,
                       const BackwardStep<T>& s) {
    using V = Vec<T, W>;
    const int64_t H = layer.H;
    for (int64_t row = 0; row < s.n; ++row) {
      const T *kept = s.kept[row], *u = s.direct ? s.direct[row] : nullptr;
      const T* h_prev = s.h_prev ? s.h_prev[row] : nullptr;
      T *d = s.d[row], *past = s.scratch + row * H;
      for (int64_t v = 0; v < H; v += W) {
        const int64_t i = min(v, H - W);
        const V g = load<T, W>(s.g[row] + i);
        const V r = load<T, W>(kept + i), z = load<T, W>(kept + H + i);
        const V n = load<T, W>(kept + 2 * H + i), q = load<T, W>(kept + 3 * H + i);
        const V h = h_prev ? load<T, W>(h_prev + i) : V{};
        const V d_n = g * (1 - z) * (1 - n * n);
        store<T, W>(d + i, d_n);
        store<T, W>(d + H + i, d_n * q * (r * (1 - r)));
        store<T, W>(d + 2 * H + i, g * (h - n) * (z * (1 - z)));
        store<T, W>(d + 3 * H + i, d_n * r);
        store<T, W>(past + i, u ? g * z + load<T, W>(u + i) : g * z);
      }
    }
    times_w_hh(s.n, s.d.data + kFromH * H, s.d.ld, s.scratch, H, s.out.data, s.out.ld);
  }
};

}  // namespace bppsa::BPPSA_ISA
