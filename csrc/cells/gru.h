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
#include "../recurrent/weights.h"

namespace bppsa::BPPSA_ISA {

template <typename T_>
struct Gru {
  using T = T_;
  static constexpr int kGates = 3;
  static constexpr int kTogether = 2;  // r, z
  static constexpr int gate_together(int i) { return i; }
  static constexpr int kLastGate = 2;
  // A row of gradients is d_n, d_r, d_z, d_q: the first three go with W_ih, the last with W_hh.
  static constexpr int kBlocks = 4;
  static constexpr int kFromX = 0;
  static constexpr int kFromH = 1;
  static constexpr int gate_of_x(int block) { return (block + 2) % 3; }
  static constexpr int kKept = 4;  // r and z block by block, n, q
  static constexpr bool kCarriesCell = false;

  static void forward(const ForwardWeights<T>& w, const ForwardStep<T>& s) {
    constexpr int kW = kMaxWidth<T>;
    const int64_t padded = w.padded;
    pre_activations<true, true>(w, w.together, w.together.bias, s, s.gates,
                                [](Vec<T, kW> z)
                                    __attribute__((always_inline)) { return sigmoid<T, kW>(z); });
    const auto as_it_is = [](Vec<T, kW> z) { return z; };
    const Rows<T> from_x{s.gates.data + 2 * padded, s.gates.ld};
    const Rows<T> q{s.gates.data + 3 * padded, s.gates.ld};
    pre_activations<false, true>(w, w.last, w.bias_h, s, q, as_it_is);
    pre_activations<true, false>(w, w.last, w.last.bias, s, from_x, as_it_is);
    for_each_block<T>(
        s.n, padded, [&](auto lanes, int64_t row, int64_t k) __attribute__((always_inline)) {
          using L = decltype(lanes);
          const int64_t ld = s.gates.ld;
          const T* r_at = s.gates.at(row, 2 * k);
          T* n_at = s.gates.at(row, 2 * padded + k);
          const auto r = L::load(r_at, ld), z = L::load(r_at + L::W, ld);
          const auto n = tanh<T, L::kAll>(L::load(n_at, ld) + r * L::load(n_at + padded, ld));
          L::store(n_at, ld, n);
          const auto h = L::load_first(s.h.at(row, k), s.h.ld, w.H - k);
          L::store(s.out.at(row, k), s.out.ld, n + z * (h - n));
        });
  }

  static void backward(const Layer<T>& layer, const BackwardWeights<T>& w,
                       const BackwardStep<T>& s) {
    const int64_t H = layer.H, padded = layer.padded;
    for_each_block<T>(
        s.n, padded, [&](auto lanes, int64_t row, int64_t k) __attribute__((always_inline)) {
          using L = decltype(lanes);
          const int64_t ld = s.kept.ld;
          const T *r_at = s.kept.at(row, 2 * k), *n_at = s.kept.at(row, 2 * padded + k);
          T* d = s.d.at(row, k);
          const auto g = L::load(s.g.at(row, k), s.g.ld);
          const auto r = L::load(r_at, ld), z = L::load(r_at + L::W, ld);
          const auto n = L::load(n_at, ld), q = L::load(n_at + padded, ld);
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
    w.w_hh(s.n, s.d.data + kFromH * padded, s.d.ld, s.scratch, padded, padded, s.out.data,
           s.out.ld);
  }
};

}  // namespace bppsa::BPPSA_ISA
