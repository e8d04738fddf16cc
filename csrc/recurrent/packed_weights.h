// The weights of a layer, rearranged once a call.
//
// The forward's are transposed, so that a row holds one input's part of all pre-activations. These
// lie in a cell's slots (Cell::kSlots of H columns), block by block: for four slots a, b, c, d of
// 20 units and vectors of 16, a, b, c, d of units 0 to 15, then a, b, c, d of units 16 to 19. So no
// vector is wasted on the end of a slot, and all slots of a block are in registers at once
// (slots.h).
#pragma once

#include "../cells/cell.h"
#include "../simd/buffer.h"
#include "../simd/panels.h"
#include "layer.h"

namespace bppsa::BPPSA_ISA {

// Columns of the product of `units` units, a multiple of vectors, with the slots' weights: a block
// of whole vectors has none for a slot that takes nothing; in a narrower one that shares a vector
// with others.
template <typename T, int kSlots>
constexpr int64_t columns_of(const Slots<kSlots>& slots, int64_t units) {
  const int64_t whole = units / kMaxWidth<T> * kMaxWidth<T>;
  return slots.used() * whole + kSlots * (units - whole);
}

template <class Cell, typename T = typename Cell::T>
class PackedWeights {
 public:
  explicit PackedWeights(const Layer<T>& layer, bool needed = true)
      : input_apart(needed && layer.I * whole_vectors<T>(Cell::kSlots * layer.padded) > kCached),
        input_width(whole_vectors<T>(columns_of<T>(Cell::FromX::slots, layer.padded))),
        input(input_apart ? layer.I : 0, input_width),
        projection(needed && layer.w_hr ? layer.H : 0, layer.padded_P),
        width_(whole_vectors<T>(Cell::kSlots * layer.padded)),
        memory_(needed ? (layer.P + (input_apart ? 0 : layer.I) + 1) * width_ : 0) {
    if (!needed) return;
    T* h = memory_.data;
    T* x = h + layer.P * width_;
    T* bias = x + (input_apart ? 0 : layer.I) * width_;
    const Columns from_x(layer, Cell::FromX::slots, layer.I, layer.w_ih);
    pack(layer, Cell::FromH::slots, Columns(layer, Cell::FromH::slots, layer.P, layer.w_hh),
         layer.P, h);
    if (input_apart)
      panels_by_columns<T>(layer.I, input_width, Columns(from_x, layer, Cell::FromX::slots),
                           input.panels());
    else
      pack(layer, Cell::FromX::slots, from_x, layer.I, x);
    if (layer.w_hr)
      panels_by_columns<T>(
          layer.H, layer.padded_P,
          [&](int64_t p) { return p < layer.P ? layer.w_hr + p * layer.H : nullptr; },
          projection.panels());
    const Columns b_ih(layer, Cell::FromX::slots, 1, layer.b_ih);
    const T* const no_bias = nullptr;
    const Columns b_hh(layer, Cell::FromH::slots, 1, kSeesC<Cell> ? no_bias : layer.b_hh);
    for (int64_t c = 0; c < width_; ++c)
      bias[c] = (b_ih(c) ? *b_ih(c) : T(0)) + (b_hh(c) ? *b_hh(c) : T(0));
    weights_ = {layer.I, layer.P, layer.H, layer.padded, x, h, bias, layer.b_hh};
  }

  const ForwardWeights<T>& operator*() const { return weights_; }

  // Whether W_ih is too large to stay in the first-level cache beside W_hh: it is then applied to
  // the samples of several steps at a time, by `input`, to rows of `input_width` numbers.
  const bool input_apart;
  const int64_t input_width;
  Multiplier<T> input, projection;

 private:
  static constexpr int64_t kCached = (16 << 10) / int64_t(sizeof(T));

  // Where the `inputs` weights of each column lie, for w (GH x inputs); null for none.
  class Columns {
   public:
    Columns(const Layer<T>& layer, const Slots<Cell::kSlots>& slots, int64_t inputs, const T* w)
        : Columns(whole_vectors<T>(Cell::kSlots * layer.padded)) {
      if (!w) return;
      for_each_block<T>(1, layer.padded, [&](auto lanes, int64_t, int64_t k) {
        constexpr int W = decltype(lanes)::W;
        for (int slot = 0; slot < Cell::kSlots; ++slot)
          for (int64_t i = 0; i < W && k + i < layer.H && slots.gate[slot] >= 0; ++i)
            columns_.data[Cell::kSlots * k + slot * W + i] =
                w + (slots.gate[slot] * layer.H + k + i) * inputs;
      });
    }
    // Of all, those that a product has, see columns_of.
    Columns(const Columns& all, const Layer<T>& layer, const Slots<Cell::kSlots>& slots)
        : Columns(whole_vectors<T>(columns_of<T>(slots, layer.padded))) {
      const T** to = columns_.data;
      for_each_block<T>(1, layer.padded, [&](auto lanes, int64_t, int64_t k) {
        constexpr int W = decltype(lanes)::W;
        for (int slot = 0; slot < Cell::kSlots; ++slot)
          if (W < kMaxWidth<T> || slots.gate[slot] >= 0)
            for (int64_t i = 0; i < W; ++i) *to++ = all(Cell::kSlots * k + slot * W + i);
      });
    }

    const T* operator()(int64_t c) const { return columns_.data[c]; }

   private:
    explicit Columns(int64_t count) : columns_(count) {
      for (int64_t c = 0; c < count; ++c) columns_.data[c] = nullptr;
    }

    Buffer<const T*> columns_;
  };

  // The panels: those of a cell with one slot as everywhere, otherwise a panel for each block.
  static void pack(const Layer<T>& layer, const Slots<Cell::kSlots>& slots, const Columns& column,
                   int64_t inputs, T* panels) {
    if constexpr (Cell::kSlots == 1) {
      panels_by_columns<T>(inputs, layer.padded, column, panels);
    } else {
      const int64_t all = Cell::kSlots * layer.padded;
      for_each_block<T>(1, layer.padded, [&](auto lanes, int64_t, int64_t k) {
        constexpr int W = decltype(lanes)::W, kWidth = kMaxWidth<T>;
        T* to = panels + columns_of<T>(slots, k) * inputs;
        for (int v = 0; v < Cell::kSlots * W / kWidth; ++v) {
          if (W == kWidth && slots.gate[v] < 0) continue;
          rows_of_columns<T>(inputs, Cell::kSlots * k + v * kWidth, all, column, to,
                             columns_of<T>(slots, W));
          to += kWidth;
        }
      });
    }
  }

  const int64_t width_;
  Buffer<T> memory_;
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

}  // namespace bppsa::BPPSA_ISA
