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

#include "../recurrent/slots.h"

namespace bppsa::BPPSA_ISA {

template <typename T_>
struct Lstm {
  using T = T_;
  static constexpr int kGates = 4;
  static constexpr int kSlots = 4;  // g, i, f, o
  struct FromX {
    static constexpr Slots<kSlots> slots{{2, 0, 1, 3}};
  };
  using FromH = FromX;
  static constexpr Activation kActivation[] = {Activation::tanh, Activation::sigmoid,
                                               Activation::sigmoid, Activation::sigmoid};
  static constexpr int kBlocks = 4;
  static constexpr int kBlockOfH = 0;
  static constexpr int gate_of_x(int block) { return block; }
  static constexpr int kKept = 5;  // the slots, c
  static constexpr bool kCarriesCell = true;

  BPPSA_INLINE static void forward(const ForwardWeights<T>& w, const ForwardStep<T>& s) {
    forward_slots<Lstm>(w, s);
  }

  template <class L, class V>
  BPPSA_INLINE static void finish(const ForwardWeights<T>& w, const ForwardStep<T>& s,
                                  V (&slot)[kSlots], int64_t row, int64_t k) {
    const V g = slot[0], i = slot[1], f = slot[2], o = slot[3];
    const V c = f * L::load(s.c[row] + k, s.c.ld) + i * g;
    const V h = o * tanh<T, L::kAll>(c);
    L::store(s.c_next[row] + k, s.c_next.ld, c);
    L::store(s.out[row] + k, s.out.ld, h);
    if (s.kept_c) L::store(s.kept_c[row] + k, s.kept_c.ld, c);
    if (s.shown) L::store_first(s.shown[row] + k, s.shown.ld, h, w.H - k);
  }

  // A row of s.d: d_i, d_f, d_g, d_o; with a projection also g_h and m, whose products are W_hr's
  // gradient.
  BPPSA_INLINE static void backward(const Layer<T>& layer, const BackwardWeights<T>& w,
                                    const BackwardStep<T>& s) {
    const int64_t H = layer.H, padded = layer.padded, padded_P = layer.padded_P;
    if (layer.w_hr) project(layer, w, s);
    const ConstRows<T> g_h = layer.w_hr ? ConstRows<T>{s.scratch, padded} : s.g;
    for_each_block<T>(
        s.n, padded, [&](auto lanes, int64_t row, int64_t k) __attribute__((always_inline)) {
          using L = decltype(lanes);
          const int64_t ld = s.kept.ld;
          const T* slots = s.kept[row] + kSlots * k;
          T* d = s.d[row] + k;
          const auto g = L::load(slots, ld), i = L::load(slots + L::W, ld),
                     f = L::load(slots + 2 * L::W, ld), o = L::load(slots + 3 * L::W, ld);
          // Without a projection tanh(c) is h / o, to the last place and for less than a tanh.
          const auto tanh_c =
              layer.w_hr ? tanh<T, L::kAll>(L::load(s.kept.at(row, 4 * padded + k), ld))
                         : L::load_first(s.h.at(row, k), s.h.ld, H - k) * reciprocal<L::kAll>(o);
          const auto c = L::load_first(s.c_prev.at(row, k), s.c_prev.ld, s.c_width - k);
          const auto g_m = L::load(g_h[row] + k, g_h.ld);
          const auto e =
              L::load(s.g[row] + padded_P + k, s.g.ld) + g_m * (o * (1 - tanh_c * tanh_c));
          L::store(d, s.d.ld, e * (g * (i * (1 - i))));
          L::store(d + padded, s.d.ld, e * (c * (f * (1 - f))));
          L::store(d + 2 * padded, s.d.ld, e * (i * (1 - g * g)));
          L::store(d + 3 * padded, s.d.ld, g_m * (tanh_c * (o * (1 - o))));
          L::store(s.out[row] + padded_P + k, s.out.ld, e * f);
          if (layer.w_hr) L::store(d + 4 * padded + padded_P, s.d.ld, o * tanh_c);
        });
    clear_padding(s.n, kBlocks, H, s.d.data, s.d.ld);
    w.w_hh(s.n, s.d.data, s.d.ld, s.direct.data, s.direct.ld, layer.P, s.out.data, s.out.ld);
  }

 private:
  // scratch = g_m = g_h W_hr, and g_h beside d. (By value: the caller's steps stay in registers.)
  static void project(const Layer<T>& layer, const BackwardWeights<T>& w, const BackwardStep<T> s) {
    const int64_t padded = layer.padded, padded_P = layer.padded_P;
    w.w_hr(s.n, s.g.data, s.g.ld, nullptr, 0, 0, s.scratch, padded);
    for (int64_t row = 0; row < s.n; ++row)
      std::memcpy(s.d[row] + 4 * padded, s.g[row], padded_P * sizeof(T));
  }
};

}  // namespace bppsa::BPPSA_ISA
