// The forward's weights, rearranged once a call: transposed, so that a row holds one input's part
// of all pre-activations, and in panels.
//
// Pre-activations come in two sections. In the first, the gates of a cell that share an activation
// lie side by side block by block (for an LSTM of 20 units and vectors of 16: i, f, o of units 0 to
// 15, then i, f, o of units 16 to 19), so that no vector is wasted on a gate's end and yet each
// gate's block is loaded as it was stored. The second is the one gate left.
#pragma once

#include "rows.h"

namespace bppsa::BPPSA_ISA {

template <class Cell, typename T = typename Cell::T>
class PackedWeights {
 public:
  explicit PackedWeights(const Layer<T>& layer, bool needed = true)
      : padded_(layer.padded),
        together_(Cell::kTogether * layer.padded),
        width_(whole_vectors<T>(together_) + whole_vectors<T>(layer.padded)),
        input_apart_(needed && layer.I * width_ > kCached),
        sources_(needed ? width_ : 0),
        memory_(needed ? (layer.P + (input_apart_ ? 0 : layer.I) + 2) * width_ : 0),
        input_(input_apart_ ? layer.I : 0, width_),
        projection_(needed && layer.w_hr ? layer.H : 0, layer.padded_P) {
    if (!needed) return;
    find_sources(layer);
    T* h = memory_.data;
    T* x = h + layer.P * width_;
    T* bias = x + (input_apart_ ? 0 : layer.I) * width_;
    T* bias_h = bias + width_;
    pack(layer.P, layer.w_hh, h);
    if (input_apart_)
      panels_by_columns<T>(layer.I, width_, column(layer.I, layer.w_ih), input_.panels());
    else
      pack(layer.I, layer.w_ih, x);
    if (layer.w_hr)
      panels_by_columns<T>(
          layer.H, layer.padded_P,
          [&](int64_t p) { return p < layer.P ? layer.w_hr + p * layer.H : nullptr; },
          projection_.panels());
    const int64_t last = whole_vectors<T>(together_);
    for (int64_t c = 0; c < width_; ++c) {
      const int64_t source = sources_.data[c];
      const T from_x = layer.b_ih && source >= 0 ? layer.b_ih[source] : T(0);
      const T from_h = layer.b_hh && source >= 0 ? layer.b_hh[source] : T(0);
      const bool apart = Cell::kFromH > 0 && c >= last;
      bias[c] = apart ? from_x : from_x + from_h;
      bias_h[c] = apart ? from_h : T(0);
    }
    weights_ = {layer.I,
                layer.P,
                layer.H,
                layer.padded,
                {together_, 0, x, h, bias},
                {layer.padded, last, x + layer.I * last, h + layer.P * last, bias + last},
                bias_h + last};
  }

  const ForwardWeights<T>& operator*() const { return weights_; }
  // Whether W_ih is too large to stay in the first-level cache beside W_hh: it is then applied to
  // many steps at a time, by `input`, to rows of `width` numbers.
  bool input_apart() const { return input_apart_; }
  const Multiplier<T>& input() const { return input_; }
  int64_t width() const { return width_; }
  const Multiplier<T>& projection() const { return projection_; }

 private:
  static constexpr int64_t kCached = (16 << 10) / int64_t(sizeof(T));

  // Which row of W each column is; -1 for padding.
  void find_sources(const Layer<T>& layer) {
    const int64_t H = layer.H;
    int64_t* source = sources_.data;
    for (int64_t c = 0; c < width_; ++c) source[c] = -1;
    for_each_block<T>(1, layer.padded, [&](auto lanes, int64_t, int64_t k) {
      constexpr int W = decltype(lanes)::W;
      for (int g = 0; g < Cell::kTogether; ++g)
        for (int64_t i = 0; i < W && k + i < H; ++i)
          source[Cell::kTogether * k + g * W + i] = Cell::gate_together(g) * H + k + i;
    });
    for (int64_t i = 0; i < H; ++i)
      source[whole_vectors<T>(together_) + i] = Cell::kLastGate * H + i;
  }

  auto column(int64_t inputs, const T* w) const {
    return [this, inputs, w](int64_t c) {
      return sources_.data[c] < 0 ? nullptr : w + sources_.data[c] * inputs;
    };
  }

  // w (GH x inputs): the panels of both sections.
  void pack(int64_t inputs, const T* w, T* panels) const {
    const int64_t first = whole_vectors<T>(together_);
    const auto from = column(inputs, w);
    panels_by_columns<T>(inputs, together_, from, panels);
    panels_by_columns<T>(
        inputs, padded_, [&](int64_t c) { return from(first + c); }, panels + inputs * first);
  }

  int64_t padded_, together_, width_;
  bool input_apart_;
  Buffer<int64_t> sources_;
  Buffer<T> memory_;
  Multiplier<T> input_;
  Multiplier<T> projection_;
  ForwardWeights<T> weights_{};
};

// The weights as a cell's backward reads them, in panels: gradients of the pre-activations, padded,
// times W_hh, and of the state, padded, times W_hr.
template <typename T>
struct BackwardWeights {
  Multiplier<T> w_hh, w_hr;

  BackwardWeights(const Layer<T>& layer, int gates)
      : w_hh(gates * layer.padded, layer.padded_P), w_hr(layer.w_hr ? layer.P : 0, layer.padded) {
    panels_by_rows<T>(
        gates * layer.padded, layer.padded_P, layer.P,
        [&](int64_t k) {
          const int64_t gate = k / layer.padded, unit = k % layer.padded;
          return unit < layer.H ? layer.w_hh + (gate * layer.H + unit) * layer.P : nullptr;
        },
        w_hh.panels());
    if (layer.w_hr)
      panels_by_rows<T>(
          layer.P, layer.padded, layer.H, [&](int64_t p) { return layer.w_hr + p * layer.H; },
          w_hr.panels());
  }
};

// The pre-activations of a section, from x, from h or from both, through f, to rows of its columns.
template <bool kFromX, bool kFromH, typename T, class F>
BPPSA_INLINE void pre_activations(const ForwardWeights<T>& w, const Section<T>& section,
                                  const T* bias, const ForwardStep<T>& s, Rows<T> out, const F& f) {
  for_each_tile<T, kMaxWidth<T>, true>(
      s.n, section.cols, [&](auto& tile) __attribute__((always_inline)) {
        tile.clear();
        if constexpr (kFromH) tile.multiply_add_panel(w.P, s.h.data, s.h.ld, section.h);
        if (kFromX && !s.x_part) tile.multiply_add_panel(w.I, s.x.data, s.x.ld, section.x);
        tile.sum();
        if (kFromX && s.x_part) tile.add_rows(s.x_part.data + section.first, s.x_part.ld);
        tile.add_row(bias);
        tile.map(f);
        tile.store_rows(out.data, out.ld);
      });
}

}  // namespace bppsa::BPPSA_ISA
