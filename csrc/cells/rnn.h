// The vanilla RNN cell: h_t = phi(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh), phi = tanh or relu.
//
// Its transposed Jacobian is kept in structure, J_t^T = W_hh^T diag(phi'(z_t)), and phi' is
// had from the output, so the forward keeps nothing beside it. As rows: d_t = phi'(z_t) * g_t is
// the gradient of z_t, and g_{t-1} = d_t W_hh + u_{t-1}.
#pragma once

#include "cell.h"

namespace bppsa::BPPSA_BACKEND {

template <bool kRelu>
struct Rnn {
  static constexpr int kGates = 1, kStates = 1, kSlots = 1, kKept = 0;
  struct FromX {
    static constexpr Slots<kSlots> slots{{0}};
  };
  using FromH = FromX;
  static constexpr Activations<kSlots> kActivation{{Activation::none}};
  static constexpr int kRows = 1, kFirstRecurrentRow = 0;
  static BPPSA_TABLE int input_gate(int row) { return row; }
  static constexpr bool kPassesH = false;

  template <class Math, class V>
  BPPSA_FORMULA static UnitState<V> step(V (&z)[1], const UnitState<V>&) {
    if constexpr (!kRelu) return {Math::tanh(z[0]), V{}};
    // As torch's relu: a NaN stays a NaN.
    return {Math::select(z[0] < 0, V{}, z[0]), V{}};
  }

  template <class V>
  struct Factors {
    V slope;  // relu: the output
  };
  template <class Math, class V>
  BPPSA_FORMULA static Factors<V> factors(const V (&)[1], V h, V) {
    return {kRelu ? h : 1 - h * h};
  }
  // For relu a choice, not a product, as in torch: 0 * inf would make a NaN.
  template <class Math, class V>
  BPPSA_FORMULA static void pull(const Factors<V>& f, const V (&g)[1], V (&d)[1], V (&)[1]) {
    if constexpr (kRelu)
      d[0] = Math::select(f.slope <= 0, V{}, g[0]);
    else
      d[0] = f.slope * g[0];
  }
};

struct RnnTanh : Rnn<false> {};
struct RnnRelu : Rnn<true> {};

}  // namespace bppsa::BPPSA_BACKEND
