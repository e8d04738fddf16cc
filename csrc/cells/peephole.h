// A long short-term memory whose gates see the cell state (Gers and Schmidhuber 2000), each unit
// its own, by a vector for each gate in the place of b_hh:
//
//   i, f = sigmoid(W_i x_t + b_i + W_h h_{t-1} + p c_{t-1}),   g = tanh(likewise)
//   c_t  = f c_{t-1} + i g,   o = sigmoid(W_i x_t + b_i + W_h h_{t-1} + p c_t)
//   m    = o tanh(c_t),   h_t = m, or W_hr m
//
// (Theirs is p_g = 0.) The forward keeps what an LSTM's does. With its rows d and gradients:
//   e = g_c + g_m o (1 - tanh^2 c) + d_o p_o
//   g_{c,t-1} = e f + d_i p_i + d_f p_f + d_g p_g
#pragma once

#include "lstm.h"

namespace bppsa::BPPSA_BACKEND {

struct Peephole : Lstm {
  static constexpr bool kPeepholes = true;
  static constexpr Activations<kSlots> kActivation{
      {Activation::none, Activation::none, Activation::none, Activation::none}};

  template <class Math, class V>
  BPPSA_FORMULA static UnitState<V> step(V (&slot)[4], const UnitState<V>& before,
                                         const V (&p)[4]) {
    const V g = slot[0] = Math::tanh(slot[0] + p[2] * before.c);
    const V i = slot[1] = Math::sigmoid(slot[1] + p[0] * before.c);
    const V f = slot[2] = Math::sigmoid(slot[2] + p[1] * before.c);
    const V c = f * before.c + i * g;
    const V o = slot[3] = Math::sigmoid(slot[3] + p[3] * c);
    return {o * Math::tanh(c), c};
  }

  template <class Math, class V>
  BPPSA_FORMULA static Factors<V> factors(const V (&slot)[4], V tanh_c, V c_before,
                                          const V (&p)[4]) {
    Factors<V> factors = Lstm::factors<Math>(slot, tanh_c, c_before);
    factors.f += factors.to_i * p[0] + factors.to_f * p[1] + factors.to_g * p[2];
    factors.to_c += factors.to_o * p[3];
    return factors;
  }
};

}  // namespace bppsa::BPPSA_BACKEND
