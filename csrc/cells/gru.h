// The gated recurrent unit, as torch's (gates r, z, n):
//
//   r, z = sigmoid(W_i x_t + b_i + W_h h_{t-1} + b_h)
//   q    = W_hn h_{t-1} + b_hn,   n = tanh(W_in x_t + b_in + r q)
//   h_t  = n + z (h_{t-1} - n)
//
// The forward keeps r, z, q, n. With d the gradients of the pre-activations, as rows:
//   d_n = g (1 - z) (1 - n^2)    d_r = d_n q r (1 - r)    d_z = g (h_{t-1} - n) z (1 - z)
//   d_q = d_n r
//   g_{t-1} = g z + [d_r d_z d_q] W_hh + u_{t-1}
// so J_t^T is three weights times diagonals, and diag(z).
#pragma once

#include "../recurrent/slots.h"

namespace bppsa::BPPSA_ISA {

template <typename T_>
struct Gru {
  using T = T_;
  static constexpr int kGates = 3;
  static constexpr int kSlots = 4;  // r, z, q, W_in x_t + b_in
  struct FromX {
    static constexpr Slots<kSlots> slots{{0, 1, -1, 2}};
  };
  struct FromH {
    static constexpr Slots<kSlots> slots{{0, 1, 2, -1}};
  };
  static constexpr Activation kActivation[] = {Activation::sigmoid, Activation::sigmoid,
                                               Activation::none, Activation::none};
  // A row of gradients is d_n, d_r, d_z, d_q: the first three go with W_ih, the last with W_hh.
  static constexpr int kBlocks = 4;
  static constexpr int kBlockOfH = 1;
  static constexpr int gate_of_x(int block) { return (block + 2) % 3; }
  static constexpr int kKept = 4;  // r, z, q, n
  static constexpr bool kCarriesCell = false;

  BPPSA_INLINE static void forward(const ForwardWeights<T>& w, const ForwardStep<T>& s) {
    forward_slots<Gru>(w, s);
  }

  template <class L, class V>
  BPPSA_INLINE static void finish(const ForwardWeights<T>& w, const ForwardStep<T>& s,
                                  V (&slot)[kSlots], int64_t row, int64_t k) {
    const V r = slot[0], z = slot[1], q = slot[2];
    const V n = slot[3] = tanh<T, L::kAll>(slot[3] + r * q);
    const V h_before = L::load_first(s.h[row] + k, s.h.ld, w.H - k);
    const V h = n + z * (h_before - n);
    L::store(s.out[row] + k, s.out.ld, h);
    if (s.shown) L::store_first(s.shown[row] + k, s.shown.ld, h, w.H - k);
  }

  BPPSA_INLINE static void backward(const Layer<T>& layer, const BackwardWeights<T>& w,
                                    const BackwardStep<T>& s) {
    const int64_t H = layer.H, padded = layer.padded;
    for_each_block<T>(
        s.n, padded, [&](auto lanes, int64_t row, int64_t k) __attribute__((always_inline)) {
          using L = decltype(lanes);
          const int64_t ld = s.kept.ld;
          const T* r_at = s.kept[row] + kSlots * k;
          T* d = s.d[row] + k;
          const auto g = L::load(s.g[row] + k, s.g.ld);
          const auto r = L::load(r_at, ld), z = L::load(r_at + L::W, ld);
          const auto q = L::load(r_at + 2 * L::W, ld), n = L::load(r_at + 3 * L::W, ld);
          const auto h = L::load_first(s.h_prev.at(row, k), s.h_prev.ld, H - k);
          const auto u = L::load_first(s.direct.at(row, k), s.direct.ld, H - k);
          const auto d_n = g * ((1 - z) * (1 - n * n));
          L::store(d, s.d.ld, d_n);
          L::store(d + padded, s.d.ld, d_n * (q * (r * (1 - r))));
          L::store(d + 2 * padded, s.d.ld, g * ((h - n) * (z * (1 - z))));
          L::store(d + 3 * padded, s.d.ld, d_n * r);
          L::store(s.scratch + row * padded + k, padded, g * z + u);
        });
    clear_padding(s.n, kBlocks, H, s.d.data, s.d.ld);
    w.w_hh(s.n, s.d.data + kBlockOfH * padded, s.d.ld, s.scratch, padded, padded, s.out.data,
           s.out.ld);
  }
};

}  // namespace bppsa::BPPSA_ISA
