// The vanilla RNN cell: h_t = phi(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh), phi = tanh or relu.
//
// Its transposed Jacobian is kept in structure, J_t^T = W_hh^T diag(phi'(z_t)), and phi' is
// had from the output, so the forward keeps nothing beside it. As rows: d_t = phi'(z_t) * g_t is
// the gradient of z_t, and g_{t-1} = d_t W_hh + u_{t-1}.
#pragma once

#include "../cpu/activations.h"
#include "../recurrent/rows.h"

namespace bppsa::BPPSA_ISA {

template <typename T_, bool kRelu>
struct Rnn {
  using T = T_;
  static constexpr int kGates = 1;   // blocks of H pre-activations
  static constexpr int kBlocks = 1;  // blocks of H numbers in a row of their gradients
  static constexpr int kFromX = 0;   // first of the kGates blocks that go with W_ih,
  static constexpr int kFromH = 0;   // and with W_hh
  static constexpr int gate_of_x(int block) { return block; }
  static constexpr int64_t kept_width(int64_t) { return 0; }
  static constexpr bool kCarriesCell = false;

  template <int W>
  BPPSA_INLINE static Vec<T, W> activate(Vec<T, W> z) {
    if constexpr (!kRelu) return tanh<T, W>(z);
    // As torch's relu: a NaN stays a NaN.
    return select<T, W>(z < T(0), Vec<T, W>{}, z);
  }

  template <int W>
  static void pack(int64_t inputs, int64_t H, const T* w, T* panels) {
    make_panels<T, W>(inputs, H, w, 1, inputs, panels);
  }

  template <int W>
  static void forward(const ForwardWeights<T>& w, const ForwardStep<T>& s) {
    for_each_tile<T, W>(s.n, w.H, [&](auto& tile) __attribute__((always_inline)) {
      tile.clear();
      if (s.h) tile.multiply_add_panel(w.P, s.h.data, s.h.ld, w.h);
      if (s.x_part)
        tile.add_rows(s.x_part.data, s.x_part.ld);
      else
        tile.multiply_add_panel(w.I, s.x.data, s.x.ld, w.x);
      tile.add_row(w.bias);
      tile.map([](Vec<T, W> z, int64_t, int64_t) { return activate<W>(z); });
      tile.store_rows(s.out.data, s.out.ld);
    });
  }

  // phi'(z) * g. For relu a choice, not a product, as in torch: 0 * inf would make a NaN.
  BPPSA_INLINE static T times_slope(T h, T g) {
    if constexpr (kRelu) return h <= 0 ? T(0) : g;
    return (1 - h * h) * g;
  }

  template <int W>
  static void backward(const Layer<T>& layer, const Multiplier<T>& times_w_hh,
                       const BackwardStep<T>& s) {
    const int64_t H = layer.H;
    for (int64_t r = 0; r < s.n; ++r) {
      const T *h = s.h[r], *g = s.g[r];
      T* d = s.d[r];
      for (int64_t i = 0; i < H; ++i) d[i] = times_slope(h[i], g[i]);
    }
    times_w_hh(s.n, s.d.data, s.d.ld, s.direct.data, s.direct.ld, s.out.data, s.out.ld);
  }
};

}  // namespace bppsa::BPPSA_ISA
