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
#include "../recurrent/rows.h"

namespace bppsa::BPPSA_ISA {

template <typename T_>
struct Lstm {
  using T = T_;
  static constexpr int kGates = 4;
  static constexpr int kBlocks = 4;
  static constexpr int kFromX = 0;
  static constexpr int kFromH = 0;
  static constexpr int gate_of_x(int block) { return block; }
  static constexpr int64_t kept_width(int64_t H) { return 5 * H; }
  static constexpr bool kCarriesCell = true;

  // The pre-activations go through as one row of 4H numbers, in vectors that know no gates; what a
  // gate's activation differs by is a number a column.
  template <int W>
  static constexpr int kColumnWidth = 4 * W < kMaxWidth<T> ? 4 * W : kMaxWidth<T>;

  template <int W>
  static void pack(int64_t inputs, int64_t H, const T* w, T* panels) {
    make_panels<T, kColumnWidth<W>>(inputs, 4 * H, w, 1, inputs, panels);
  }

  // s.kept: rows of i, f, g, o, or none (they are then in s.scratch). c_t goes to s.c_next.
  template <int W>
  static void forward(const ForwardWeights<T>& w, const ForwardStep<T>& s) {
    using V = Vec<T, W>;
    constexpr int WC = kColumnWidth<W>;
    const int64_t H = w.H;
    const Rows<T> gates = s.kept ? s.kept : Rows<T>{s.scratch, 4 * H};
    for_each_tile<T, WC>(s.n, 4 * H, [&](auto& tile) __attribute__((always_inline)) {
      tile.clear();
      if (s.h) tile.multiply_add_panel(w.P, s.h.data, s.h.ld, w.h);
      if (s.x_part)
        tile.add_rows(s.x_part.data, s.x_part.ld);
      else
        tile.multiply_add_panel(w.I, s.x.data, s.x.ld, w.x);
      tile.add_row(w.bias);
      tile.map([&](Vec<T, WC> z, int64_t, int64_t column) __attribute__((always_inline)) {
        return tanh_or_sigmoid<T, WC>(z, load<T, WC>(w.is_tanh + column));
      });
      tile.store_rows(gates.data, gates.ld);
    });
    for (int64_t row = 0; row < s.n; ++row) {
      const T* gate = gates[row];
      const T* c_prev = s.c ? s.c[row] : nullptr;
      T *c_next = s.c_next[row], *out = s.out[row];
      for (int64_t block = 0; block < H; block += W) {
        const int64_t k = min(block, H - W);
        const V i = load<T, W>(gate + k), f = load<T, W>(gate + H + k);
        const V g = load<T, W>(gate + 2 * H + k), o = load<T, W>(gate + 3 * H + k);
        const V c = f * (c_prev ? load<T, W>(c_prev + k) : V{}) + i * g;
        store<T, W>(c_next + k, c);
        store<T, W>(out + k, o * tanh<T, W>(c));
      }
    }
  }

  // A row of s.d: d_i, d_f, d_g, d_o; with a projection also g_h and m, whose products are W_hr's
  // gradient.
  template <int W>
  static void backward(const Layer<T>& layer, const Multiplier<T>& times_w_hh,
                       const BackwardStep<T>& s) {
    using V = Vec<T, W>;
    const int64_t H = layer.H, P = layer.P;
    if (layer.w_hr) project<W>(layer, s);
    for (int64_t row = 0; row < s.n; ++row) {
      const T *kept = s.kept[row], *g_c = s.g[row] + P;
      const T* g_m = layer.w_hr ? s.scratch + row * H : s.g[row];
      const T* c_prev = s.c_prev ? s.c_prev[row] : nullptr;
      const T* m = layer.w_hr ? nullptr : s.h[row];
      T *d = s.d[row], *out_c = s.out[row] + P;
      for (int64_t v = 0; v < H; v += W) {
        const int64_t k = min(v, H - W);
        const V i = load<T, W>(kept + k), f = load<T, W>(kept + H + k);
        const V g = load<T, W>(kept + 2 * H + k), o = load<T, W>(kept + 3 * H + k);
        // Without a projection tanh(c) is h / o, to the last place and for less than a tanh.
        const V tanh_c =
            m ? load<T, W>(m + k) * reciprocal<W>(o) : tanh<T, W>(load<T, W>(kept + 4 * H + k));
        const V c = c_prev ? load<T, W>(c_prev + k) : V{};
        const V gm = load<T, W>(g_m + k);
        const V e = load<T, W>(g_c + k) + gm * o * (1 - tanh_c * tanh_c);
        store<T, W>(d + k, e * g * (i * (1 - i)));
        store<T, W>(d + H + k, e * c * (f * (1 - f)));
        store<T, W>(d + 2 * H + k, e * i * (1 - g * g));
        store<T, W>(d + 3 * H + k, gm * tanh_c * (o * (1 - o)));
        store<T, W>(out_c + k, e * f);
        if (layer.w_hr) store<T, W>(d + 4 * H + P + k, o * tanh_c);
      }
    }
    times_w_hh(s.n, s.d.data, s.d.ld, s.direct.data, s.direct.ld, s.out.data, s.out.ld);
  }

 private:
  // scratch = g_m = g_h W_hr, and g_h beside d.
  template <int W>
  static void project(const Layer<T>& layer, const BackwardStep<T>& s) {
    const int64_t H = layer.H, P = layer.P;
    multiply_rows_of_width<T, W, false>(s.n, P, H, s.g.data, s.g.ld, layer.w_hr, nullptr, 0,
                                        s.scratch, H);
    for (int64_t row = 0; row < s.n; ++row) std::memcpy(s.d[row] + 4 * H, s.g[row], P * sizeof(T));
  }
};

}  // namespace bppsa::BPPSA_ISA
