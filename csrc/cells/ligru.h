// The light gated recurrent unit (Li-GRU, arXiv:1803.10225): a GRU without reset gate, whose
// candidate is a relu (gates z, n):
//
//   z   = sigmoid(W_iz x_t + b_iz + W_hz h_{t-1} + b_hz)
//   n   = relu(W_in x_t + b_in + W_hn h_{t-1} + b_hn)
//   h_t = z h_{t-1} + (1 - z) n
//
// The forward keeps z and n. With d the gradients of the pre-activations, as rows:
//   d_z = g (h_{t-1} - n) z (1 - z)      d_n = g (1 - z) where n > 0
//   g_{t-1} = g z + [d_z d_n] W_hh + u_{t-1}
#pragma once

#include "cell.h"

namespace bppsa::BPPSA_BACKEND {

struct LiGru {
  static constexpr int kGates = 2, kStates = 1;
  static constexpr int kSlots = 4, kKept = 4;  // z, n, and two that take nothing
  struct FromX {
    static constexpr Slots<kSlots> slots{{0, 1, -1, -1}};
  };
  using FromH = FromX;
  static constexpr Activations<kSlots> kActivation{
      {Activation::sigmoid, Activation::none, Activation::none, Activation::none}};
  static constexpr int kRows = 4, kFirstRecurrentRow = 2;  // d_z, d_n, and both again
  static BPPSA_TABLE int input_gate(int row) { return row; }
  static constexpr bool kPassesH = true;

  template <class Math, class V>
  BPPSA_FORMULA static UnitState<V> step(V (&slot)[4], const UnitState<V>& before) {
    // As torch's relu: a NaN stays a NaN.
    const V z = slot[0], n = slot[1] = Math::select(slot[1] < 0, V{}, slot[1]);
    return {z * before.h + (1 - z) * n, V{}};  // infinite where n is: n + z (h - n) is no number
  }

  template <class V>
  struct Factors {
    V to_z, to_n, n, z;  // from the gradient of h
  };
  template <class Math, class V>
  BPPSA_FORMULA static Factors<V> factors(const V (&slot)[4], V, V h_before) {
    const V z = slot[0], n = slot[1];
    return {(h_before - n) * (z * (1 - z)), 1 - z, n, z};
  }
  // A choice, not a product, as in torch: 0 * inf would make a NaN.
  template <class Math, class V>
  BPPSA_FORMULA static void pull(const Factors<V>& f, const V (&g)[1], V (&d)[4], V (&past)[1]) {
    d[0] = d[2] = f.to_z * g[0];
    d[1] = d[3] = Math::select(f.n <= 0, V{}, f.to_n * g[0]);
    past[0] = f.z * g[0];
  }
};

}  // namespace bppsa::BPPSA_BACKEND
