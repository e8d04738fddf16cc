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

#include "../cpu/activations.h"
#include "../recurrent/weights.h"

namespace bppsa::BPPSA_ISA {

template <typename T_>
struct Lstm {
  using T = T_;
  static constexpr int kGates = 4;
  static constexpr int kTogether = 3;  // i, f, o
  static constexpr int gate_together(int i) { return i < 2 ? i : 3; }
  static constexpr int kLastGate = 2;
  static constexpr int kBlocks = 4;
  static constexpr int kFromX = 0;
  static constexpr int kFromH = 0;
  static constexpr int gate_of_x(int block) { return block; }
  static constexpr int kKept = 5;  // i, f and o block by block, g, c
  static constexpr bool kCarriesCell = true;

  static void forward(const ForwardWeights<T>& w, const ForwardStep<T>& s) {
    constexpr int kW = kMaxWidth<T>;
    const int64_t padded = w.padded;
    pre_activations<true, true>(w, w.together, w.together.bias, s, s.gates,
                                [](Vec<T, kW> z)
                                    __attribute__((always_inline)) { return sigmoid<T, kW>(z); });
    pre_activations<true, true>(
        w, w.last, w.last.bias, s, Rows<T>{s.gates.data + 3 * padded, s.gates.ld},
        [](Vec<T, kW> z) __attribute__((always_inline)) { return tanh<T, kW>(z); });
    for_each_block<T>(s.n, padded,
                      [&](auto lanes, int64_t row, int64_t k) __attribute__((always_inline)) {
                        using L = decltype(lanes);
                        const int64_t ld = s.gates.ld;
                        const T* i_at = s.gates.at(row, 3 * k);
                        const auto i = L::load(i_at, ld), f = L::load(i_at + L::W, ld),
                                   o = L::load(i_at + 2 * L::W, ld);
                        const auto g = L::load(s.gates.at(row, 3 * padded + k), ld);
                        const auto c = f * L::load(s.c.at(row, k), s.c.ld) + i * g;
                        L::store(s.c_next.at(row, k), s.c_next.ld, c);
                        L::store(s.out.at(row, k), s.out.ld, o * tanh<T, L::kAll>(c));
                      });
  }

  // A row of s.d: d_i, d_f, d_g, d_o; with a projection also g_h and m, whose products are W_hr's
  // gradient.
  static void backward(const Layer<T>& layer, const BackwardWeights<T>& w,
                       const BackwardStep<T>& s) {
    const int64_t H = layer.H, padded = layer.padded, padded_P = layer.padded_P;
    if (layer.w_hr) project(layer, w, s);
    const ConstRows<T> g_h = layer.w_hr ? ConstRows<T>{s.scratch, padded} : s.g;
    for_each_block<T>(
        s.n, padded, [&](auto lanes, int64_t row, int64_t k) __attribute__((always_inline)) {
          using L = decltype(lanes);
          const int64_t ld = s.kept.ld;
          const T* i_at = s.kept.at(row, 3 * k);
          T* d = s.d.at(row, k);
          const auto i = L::load(i_at, ld), f = L::load(i_at + L::W, ld),
                     o = L::load(i_at + 2 * L::W, ld);
          const auto g = L::load(s.kept.at(row, 3 * padded + k), ld);
          // Without a projection tanh(c) is h / o, to the last place and for less than a tanh.
          const auto tanh_c =
              layer.w_hr ? tanh<T, L::kAll>(L::load(s.kept.at(row, 4 * padded + k), ld))
                         : L::load_first(s.h.at(row, k), s.h.ld, H - k) * reciprocal<L::kAll>(o);
          const auto c = L::load_first(s.c_prev.at(row, k), s.c_prev.ld, s.c_width - k);
          const auto g_m = L::load(g_h.at(row, k), g_h.ld);
          const auto e =
              L::load(s.g.at(row, padded_P + k), s.g.ld) + g_m * (o * (1 - tanh_c * tanh_c));
          L::store(d, s.d.ld, e * (g * (i * (1 - i))));
          L::store(d + padded, s.d.ld, e * (c * (f * (1 - f))));
          L::store(d + 2 * padded, s.d.ld, e * (i * (1 - g * g)));
          L::store(d + 3 * padded, s.d.ld, g_m * (tanh_c * (o * (1 - o))));
          L::store(s.out.at(row, padded_P + k), s.out.ld, e * f);
          if (layer.w_hr) L::store(d + 4 * padded + padded_P, s.d.ld, o * tanh_c);
        });
    clear_padding(s.n, kBlocks, H, s.d.data, s.d.ld);
    w.w_hh(s.n, s.d.data, s.d.ld, s.direct.data, s.direct.ld, layer.P, s.out.data, s.out.ld);
  }

 private:
  // scratch = g_m = g_h W_hr, and g_h beside d.
  static void project(const Layer<T>& layer, const BackwardWeights<T>& w,
                      const BackwardStep<T>& s) {
    const int64_t padded = layer.padded, padded_P = layer.padded_P;
    w.w_hr(s.n, s.g.data, s.g.ld, nullptr, 0, 0, s.scratch, padded);
    for (int64_t row = 0; row < s.n; ++row)
      std::memcpy(s.d[row] + 4 * padded, s.g[row], padded_P * sizeof(T));
  }
};

}  // namespace bppsa::BPPSA_ISA
