// The vanilla RNN cell: h_t = phi(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh), phi = tanh or relu.
//
// Its transposed Jacobian is kept in structure, J_t^T = W_hh^T diag(phi'(z_t)), and phi' is
// had from the output, so the forward keeps nothing beside it. As rows: d_t = phi'(z_t) * g_t is
// the gradient of z_t, and g_{t-1} = d_t W_hh + u_{t-1}.
#pragma once

#include "../cpu/activations.h"
#include "../recurrent/weights.h"

namespace bppsa::BPPSA_ISA {

template <typename T_, bool kRelu>
struct Rnn {
  using T = T_;
  static constexpr int kGates = 1;  // of H pre-activations
  // Columns of H of the products with the weights, and which gates' weights they take.
  static constexpr int kSlots = 1;
  struct FromX {
    static constexpr Slots<kSlots> slots{{0}};
  };
  using FromH = FromX;
  // Blocks of padded units in a row of the gates' gradients: the first kGates go with W_ih, those
  // from kBlockOfH on with W_hh.
  static constexpr int kBlocks = 1;
  static constexpr int kBlockOfH = 0;
  static constexpr int gate_of_x(int block) { return block; }
  static constexpr int kKept = 0;  // blocks of padded units that the forward keeps
  static constexpr bool kCarriesCell = false;

  template <int W>
  BPPSA_INLINE static Vec<T, W> activate(Vec<T, W> z) {
    if constexpr (!kRelu) return tanh<T, W>(z);
    // As torch's relu: a NaN stays a NaN.
    return select<T, W>(z < T(0), Vec<T, W>{}, z);
  }

  BPPSA_INLINE static void forward(const ForwardWeights<T>& w, const ForwardStep<T>& s) {
    const Columns<T, kMaxWidth<T>> columns(w.padded);
    for_each_tile(s.n, columns, [&](auto& tile) __attribute__((always_inline)) {
      tile.clear();
      tile.multiply_add_panel(w.P, s.h.data, s.h.ld, w.h);
      if (!s.x_part) tile.multiply_add_panel(w.I, s.x.data, s.x.ld, w.x);
      tile.sum();
      if (s.x_part) tile.add_rows(s.x_part.data, s.x_part.ld);
      tile.add_row(w.bias);
      tile.map([](auto z) __attribute__((always_inline)) {
        return activate<int(sizeof(z) / sizeof(T))>(z);
      });
      tile.store_rows(s.out.data, s.out.ld);
    });
    if (s.shown)
      for (int64_t r = 0; r < s.n; ++r) copy_units(w.H, s.out[r], s.shown[r]);
  }

  // phi'(z) * g. For relu a choice, not a product, as in torch: 0 * inf would make a NaN.
  template <int W>
  BPPSA_INLINE static Vec<T, W> times_slope(Vec<T, W> h, Vec<T, W> g) {
    if constexpr (kRelu) return select<T, W>(h <= T(0), Vec<T, W>{}, g);
    return (1 - h * h) * g;
  }

  BPPSA_INLINE static void backward(const Layer<T>& layer, const BackwardWeights<T>& w,
                                    const BackwardStep<T>& s) {
    const int64_t H = layer.H;
    for_each_block<T>(s.n, layer.padded,
                      [&](auto lanes, int64_t row, int64_t k) __attribute__((always_inline)) {
                        using L = decltype(lanes);
                        const auto h = L::load_first(s.h.at(row, k), s.h.ld, H - k);
                        const auto g = L::load(s.g[row] + k, s.g.ld);
                        L::store(s.d[row] + k, s.d.ld, times_slope<L::kAll>(h, g));
                      });
    clear_padding(s.n, kBlocks, H, s.d.data, s.d.ld);
    w.w_hh(s.n, s.d.data, s.d.ld, s.direct.data, s.direct.ld, layer.P, s.out.data, s.out.ld);
  }
};

}  // namespace bppsa::BPPSA_ISA
