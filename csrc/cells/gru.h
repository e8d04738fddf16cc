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

#include "cell.h"

namespace bppsa::BPPSA_BACKEND {

struct Gru {
  static constexpr int kGates = 3, kStates = 1;
  static constexpr int kSlots = 4, kKept = 4;  // r, z, q, W_in x_t + b_in, which becomes n
  struct FromX {
    static constexpr Slots<kSlots> slots{{0, 1, -1, 2}};
  };
  struct FromH {
    static constexpr Slots<kSlots> slots{{0, 1, 2, -1}};
  };
  static constexpr Activations<kSlots> kActivation{
      {Activation::sigmoid, Activation::sigmoid, Activation::none, Activation::none}};
  // d_n, d_r, d_z, d_q: the first three go with W_ih, the last three with W_hh.
  static constexpr int kRows = 4, kFirstRecurrentRow = 1;
  static BPPSA_TABLE int input_gate(int row) { return (row + 2) % 3; }
  static constexpr bool kPassesH = true;

  template <class Math, class V>
  BPPSA_FORMULA static UnitState<V> step(V (&slot)[4], const UnitState<V>& before) {
    const V r = slot[0], z = slot[1], q = slot[2];
    const V n = slot[3] = Math::tanh(slot[3] + r * q);
    return {n + z * (before.h - n), V{}};
  }

  template <class V>
  struct Factors {
    V to_n, to_r, to_z, to_q, z;  // from the gradient of h
  };
  template <class Math, class V>
  BPPSA_FORMULA static Factors<V> factors(const V (&slot)[4], V, V h_before) {
    const V r = slot[0], z = slot[1], q = slot[2], n = slot[3];
    const V to_n = (1 - z) * (1 - n * n);
    return {to_n, to_n * q * (r * (1 - r)), (h_before - n) * (z * (1 - z)), to_n * r, z};
  }
  template <class Math, class V>
  BPPSA_FORMULA static void pull(const Factors<V>& f, const V (&g)[1], V (&d)[4], V (&past)[1]) {
    d[0] = f.to_n * g[0];
    d[1] = f.to_r * g[0];
    d[2] = f.to_z * g[0];
    d[3] = f.to_q * g[0];
    past[0] = f.z * g[0];
  }
};

}  // namespace bppsa::BPPSA_BACKEND
