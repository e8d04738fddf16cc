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

  // r and z go through as one row of 2H numbers, in vectors that know no gates; n and what comes
  // of it unit by unit.
  template <int W>
  static constexpr int kColumnWidth = 2 * W < kMaxWidth<T> ? 2 * W : kMaxWidth<T>;

  // Where the panels of n begin behind those of r and z.
  template <int W>
  static int64_t panels_of_n(int64_t inputs, int64_t H) {
    return panel_size(inputs, 2 * H, kColumnWidth<W>);
  }

  template <int W>
  static void pack(int64_t inputs, int64_t H, const T* w, T* panels) {
    make_panels<T, kColumnWidth<W>>(inputs, 2 * H, w, 1, inputs, panels);
    make_panels<T, W>(inputs, H, w + 2 * H * inputs, 1, inputs, panels + panels_of_n<W>(inputs, H));
  }

  // s.kept: rows of r, z, n, q, or none (r, z, q are then in s.scratch).
  template <int W>
  static void forward(const ForwardWeights<T>& w, const ForwardStep<T>& s) {
    using V = Vec<T, W>;
    constexpr int WC = kColumnWidth<W>;
    const int64_t H = w.H;
    const Rows<T> gates = s.kept ? s.kept : Rows<T>{s.scratch, 3 * H};
    const Rows<T> qs{gates.data + (s.kept ? 3 * H : 2 * H), gates.ld};
    for_each_tile<T, WC>(s.n, 2 * H, [&](auto& tile) __attribute__((always_inline)) {
      tile.clear();
      if (s.h) tile.multiply_add_panel(H, s.h.data, s.h.ld, w.h);
      if (s.x_part)
        tile.add_rows(s.x_part.data, s.x_part.ld);
      else
        tile.multiply_add_panel(w.I, s.x.data, s.x.ld, w.x);
      tile.add_row(w.bias);
      tile.map([&](Vec<T, WC> z, int64_t, int64_t) { return sigmoid<T, WC>(z); });
      tile.store_rows(gates.data, gates.ld);
    });
    for_each_tile<T, W>(s.n, H, [&](auto& tile) __attribute__((always_inline)) {
      tile.clear();
      if (s.h) tile.multiply_add_panel(H, s.h.data, s.h.ld, w.h + panels_of_n<W>(H, H));
      tile.add_row(w.bias_q);
      tile.store_rows(qs.data, qs.ld);
    });
    for_each_tile<T, W>(s.n, H, [&](auto& tile) __attribute__((always_inline)) {
      tile.clear();
      if (s.x_part)
        tile.add_rows(s.x_part.data + 2 * H, s.x_part.ld);
      else
        tile.multiply_add_panel(w.I, s.x.data, s.x.ld, w.x + panels_of_n<W>(w.I, H));
      tile.add_row(w.bias + 2 * H);
      tile.map([&](V from_x, int64_t row, int64_t unit) __attribute__((always_inline)) {
        const T* gate = gates[row] + unit;
        const V r = load<T, W>(gate), z = load<T, W>(gate + H), q = load<T, W>(qs[row] + unit);
        const V n = tanh<T, W>(from_x + r * q);
        const V h = s.h ? load<T, W>(s.h[row] + unit) : V{};
        if (s.kept) store<T, W>(s.kept[row] + 2 * H + unit, n);
        return n + z * (h - n);
      });
      tile.store_rows(s.out.data, s.out.ld);
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
