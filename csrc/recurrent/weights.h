// The forward's weights, rearranged once a call where they are needed: transposed, in the panels
// that the cells' tiles read.
#pragma once

#include "rows.h"

namespace bppsa::BPPSA_ISA {

template <class Cell, typename T = typename Cell::T>
class PackedWeights {
 public:
  explicit PackedWeights(const Layer<T>& layer, bool needed = true)
      : input_apart_(needed && size_of_input(layer) > kCached),
        memory_(needed
                    ? size_of_input(layer) + size(layer, layer.P) + (2 * Cell::kGates + 1) * layer.H
                    : 0),
        input_(layer.I, Cell::kGates * layer.H, layer.w_ih, 1, layer.I, input_apart_),
        projection_(layer.H, layer.P, layer.w_hr, 1, layer.H, needed && layer.w_hr) {
    if (!needed) return;
    const int64_t H = layer.H, GH = Cell::kGates * H;
    T* x = memory_.data;
    T* h = x + size_of_input(layer);
    T* bias = h + size(layer, layer.P);
    T* bias_q = bias + GH;
    if (!input_apart_) pack(layer.I, H, layer.w_ih, x);
    pack(layer.P, H, layer.w_hh, h);
    // A cell whose W_hh part of the last gate stands alone has that gate's bias there too.
    const int64_t added = Cell::kFromH > 0 ? GH - H : GH;
    for (int64_t j = 0; j < GH; ++j) {
      const T from_x = layer.b_ih ? layer.b_ih[j] : T(0);
      const T from_h = layer.b_hh ? layer.b_hh[j] : T(0);
      bias[j] = j < added ? from_x + from_h : from_x;
      if (j >= added) bias_q[j - added] = from_h;
    }
    T* is_tanh = bias_q + H;
    for (int64_t j = 0; j < GH; ++j) is_tanh[j] = j / H == 2;  // gates in the order i, f, g, o
    weights_ = {layer.I, H, layer.P, x, h, bias, bias_q, is_tanh};
  }

  const ForwardWeights<T>& operator*() const { return weights_; }
  // Whether W_ih is too large to stay in the first-level cache beside W_hh: it is then applied to
  // many steps at a time, by `input`.
  bool input_apart() const { return input_apart_; }
  const Multiplier<T>& input() const { return input_; }
  const Multiplier<T>& projection() const { return projection_; }

 private:
  static constexpr int64_t kCached = (16 << 10) / int64_t(sizeof(T));

  // Of the panels, each piece of which is rounded up to whole vectors.
  static int64_t size(const Layer<T>& layer, int64_t inputs) {
    return inputs * (Cell::kGates * layer.H + 2 * kMaxWidth<T>);
  }
  static int64_t size_of_input(const Layer<T>& layer) { return size(layer, layer.I); }

  // w (GH x inputs) transposed, in panels.
  static void pack(int64_t inputs, int64_t H, const T* w, T* panels) {
    with_width<T>(best_width<T>(H), [&](auto width) {
      Cell::template pack<decltype(width)::value>(inputs, H, w, panels);
    });
  }

  bool input_apart_;
  Buffer<T> memory_;
  Multiplier<T> input_;
  Multiplier<T> projection_;
  ForwardWeights<T> weights_{};
};

}  // namespace bppsa::BPPSA_ISA
