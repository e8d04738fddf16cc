// The long short-term memory, as torch's (gates i, f, g, o), with or without a projection W_hr:
//
//   i, f, o = sigmoid(W_i x_t + b_i + W_h h_{t-1} + b_h),   g = tanh(…)
//   c_t = f c_{t-1} + i g,   m = o tanh(c_t),   h_t = m, or W_hr m
//
// The chain's state is (h, c). The forward keeps i, f, g, o, c. As rows, with g_h, g_c the
// gradients of h_t and c_t:
//   g_m = g_h W_hr            e = g_c + g_m o (1 - tanh^2 c)
//   d_i = e g i (1 - i)       d_f = e c_{t-1} f (1 - f)
//   d_g = e i (1 - g^2)       d_o = g_m tanh(c) o (1 - o)
//   g_{h,t-1} = d W_hh + u_{t-1}          g_{c,t-1} = e f
#pragma once

#include "cell.h"

namespace bppsa::BPPSA_BACKEND {

struct Lstm {
  static constexpr int kGates = 4, kStates = 2;
  static constexpr int kSlots = 4, kKept = 5;  // g, i, f, o; c
  struct FromX {
    static constexpr Slots<kSlots> slots{{2, 0, 1, 3}};
  };
  using FromH = FromX;
  static constexpr Activations<kSlots> kActivation{
      {Activation::tanh, Activation::sigmoid, Activation::sigmoid, Activation::sigmoid}};
  static constexpr int kRows = 4, kFirstRecurrentRow = 0;  // d_i, d_f, d_g, d_o
  static BPPSA_TABLE int input_gate(int row) { return row; }
  static constexpr bool kPassesH = false;

  template <class Math, class V>
  BPPSA_FORMULA static UnitState<V> step(V (&slot)[4], const UnitState<V>& before) {
    const V g = slot[0], i = slot[1], f = slot[2], o = slot[3];
    const V c = f * before.c + i * g;
    return {o * Math::tanh(c), c};
  }

  // Without a projection tanh(c) is h / o, to the last place and for less than a tanh.
  template <class Math, class V>
  BPPSA_FORMULA static V tanh_c(const V (&slot)[4], V h) {
    return h * Math::reciprocal(slot[3]);
  }
  template <class V>
  BPPSA_FORMULA static V unprojected(const V (&slot)[4], V tanh_c) {
    return slot[3] * tanh_c;
  }

  template <class V>
  struct Factors {
    V to_i, to_f, to_g, f;  // from the gradient of c
    V to_o, to_c;           // from the gradient of h
  };
  template <class Math, class V>
  BPPSA_FORMULA static Factors<V> factors(const V (&slot)[4], V tanh_c, V c_before) {
    const V g = slot[0], i = slot[1], f = slot[2], o = slot[3];
    return {g * (i * (1 - i)),      c_before * (f * (1 - f)), i * (1 - g * g), f,
            tanh_c * (o * (1 - o)), o * (1 - tanh_c * tanh_c)};
  }
  template <class Math, class V>
  BPPSA_FORMULA static void pull(const Factors<V>& f, const V (&g)[2], V (&d)[4], V (&past)[2]) {
    const V e = g[1] + f.to_c * g[0];
    d[0] = f.to_i * e;
    d[1] = f.to_f * e;
    d[2] = f.to_g * e;
    d[3] = f.to_o * g[0];
    past[1] = f.f * e;
  }
};

}  // namespace bppsa::BPPSA_BACKEND
