// The weights of a layer, rearranged once a call.
//
// The forward's are transposed, so that a row holds one input's part of all pre-activations. These
// lie in a cell's slots (Cell::kSlots of H columns), block by block: for four slots a, b, c, d of
// 20 units and vectors of 16, a, b, c, d of units 0 to 15, then a, b, c, d of units 16 to 19. So no
// vector is wasted on the end of a slot, and all slots of a block are in registers at once
// (slots.h).
//
// Compiled once a level (cpu/levels/recurrent_weights.cpp): of a cell they need no more than which
// gates its slots take.
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

// Which gates' weights a cell's slots take (cells/cell.h).
template <int kSlots>
struct GatesOfSlots {
  Slots<kSlots> x, h;
  bool sees_c;  // b_hh is no bias then
};
template <class Cell>
constexpr GatesOfSlots<Cell::kSlots> kGatesOfSlots{Cell::FromX::slots, Cell::FromH::slots,
                                                   kSeesC<Cell>};

// Numbers that stay in the first-level cache beside W_hh.
template <typename T>
constexpr int64_t kCached = (16 << 10) / int64_t(sizeof(T));

template <typename T, int kSlots>
class PackedWeights {
 public:
  PackedWeights(const GatesOfSlots<kSlots>& gates, const Layer<T>& layer, bool needed = true);

  const ForwardWeights<T>& operator*() const { return weights_; }

  static int64_t bytes(const Layer<T>& layer) {
    return (layer.P + layer.I) * whole_vectors<T>(kSlots * layer.padded) * sizeof(T);
  }

  // to, n rows of `input_width` numbers, = the part of n rows of x in the pre-activations.
  void input(int64_t n, ConstRows<T> x, Rows<T> to) const;

  // Whether W_ih is too large to stay in the first-level cache beside W_hh, or none is needed: the
  // part of the samples of several steps is then made by `input`, before those steps.
  const bool input_apart;
  const int64_t input_width;
  Multiplier<T> projection;

 private:
  class Columns;
  static void pack(const Layer<T>& layer, const Slots<kSlots>& slots, const Columns& column,
                   int64_t inputs, T* panels);

  const Slots<kSlots> from_x_;
  const int64_t all_, first_;
  const bool takes_sums_;
  Multiplier<T> input_;
  const int64_t width_;
  Buffer<T> memory_;
  ForwardWeights<T> weights_{};
};

template <class Cell>
using PackedWeightsOf = PackedWeights<typename Cell::T, Cell::kSlots>;

// The weights as a cell's backward reads them, in panels: gradients of the pre-activations, padded,
// times W_hh, and of the state, padded, times W_hr.
template <typename T>
struct BackwardWeights {
  Multiplier<T> w_hh, w_hr;

  BackwardWeights(const Layer<T>& layer, int gates, bool needed);

  static int64_t bytes(const Layer<T>& layer, int gates) {
    return (gates + (layer.w_hr ? 1 : 0)) * layer.all_padded * layer.padded_P * sizeof(T);
  }
};

extern template class PackedWeights<float, 1>;
extern template class PackedWeights<float, 4>;
extern template class PackedWeights<double, 1>;
extern template class PackedWeights<double, 4>;
extern template struct BackwardWeights<float>;
extern template struct BackwardWeights<double>;

// Where the `inputs` weights of each column lie, for w (GH x inputs); null for none.
template <typename T, int kSlots>
class PackedWeights<T, kSlots>::Columns {
 public:
  Columns(const Layer<T>& layer, const Slots<kSlots>& slots, int64_t inputs, const T* w)
      : Columns(whole_vectors<T>(kSlots * layer.padded)) {
    if (!w) return;
    for_each_block<T>(1, layer.padded, [&](auto lanes, int64_t, int64_t k) {
      constexpr int W = decltype(lanes)::W;
      for (int slot = 0; slot < kSlots; ++slot)
        for (int64_t i = 0; i < W && k + i < layer.H && slots.gate[slot] >= 0; ++i)
          columns_.data[kSlots * k + slot * W + i] =
              w + (slots.gate[slot] * layer.all + layer.first + k + i) * inputs;
    });
  }
  // Of all, those that a product has, see columns_of.
  Columns(const Columns& all, const Layer<T>& layer, const Slots<kSlots>& slots)
      : Columns(whole_vectors<T>(columns_of<T>(slots, layer.padded))) {
    const T** to = columns_.data;
    for_each_block<T>(1, layer.padded, [&](auto lanes, int64_t, int64_t k) {
      constexpr int W = decltype(lanes)::W;
      for (int slot = 0; slot < kSlots; ++slot)
        if (W < kMaxWidth<T> || slots.gate[slot] >= 0)
          for (int64_t i = 0; i < W; ++i) *to++ = all(kSlots * k + slot * W + i);
    });
  }

  const T* operator()(int64_t c) const { return columns_.data[c]; }

 private:
  explicit Columns(int64_t count) : columns_(count) {
    for (int64_t c = 0; c < count; ++c) columns_.data[c] = nullptr;
  }

  Buffer<const T*> columns_;
};

template <typename T, int kSlots>
PackedWeights<T, kSlots>::PackedWeights(const GatesOfSlots<kSlots>& gates, const Layer<T>& layer,
                                        bool needed)
    : input_apart(needed &&
                  (!layer.w_ih || layer.I * whole_vectors<T>(kSlots * layer.padded) > kCached<T>)),
      input_width(whole_vectors<T>(columns_of<T>(gates.x, layer.padded))),
      projection(needed && layer.w_hr ? layer.H : 0, layer.padded_P),
      from_x_(gates.x),
      all_(layer.all),
      first_(layer.first),
      takes_sums_(!layer.w_ih),
      input_(input_apart && layer.w_ih ? layer.I : 0, input_width),
      width_(whole_vectors<T>(kSlots * layer.padded)),
      memory_(needed ? (layer.P + (input_apart ? 0 : layer.I) + 1) * width_ : 0) {
  if (!needed) return;
  T* h = memory_.data;
  T* x = h + layer.P * width_;
  T* bias = x + (input_apart ? 0 : layer.I) * width_;
  const Columns from_x(layer, gates.x, layer.I, layer.w_ih);
  pack(layer, gates.h, Columns(layer, gates.h, layer.P, layer.w_hh), layer.P, h);
  if (!input_apart)
    pack(layer, gates.x, from_x, layer.I, x);
  else if (!takes_sums_)
    panels_by_columns<T>(layer.I, input_width, Columns(from_x, layer, gates.x), input_.panels());
  if (layer.w_hr)
    panels_by_columns<T>(
        layer.H, layer.padded_P,
        [&](int64_t p) { return p < layer.P ? layer.w_hr + p * layer.H : nullptr; },
        projection.panels());
  const Columns b_ih(layer, gates.x, 1, layer.b_ih);
  const Columns b_hh(layer, gates.h, 1, gates.sees_c ? nullptr : layer.b_hh);
  for (int64_t c = 0; c < width_; ++c)
    bias[c] = (b_ih(c) ? *b_ih(c) : T(0)) + (b_hh(c) ? *b_hh(c) : T(0));
  weights_ = {layer.I, layer.P, layer.H, layer.padded, x, h, bias, layer.b_hh};
}

template <typename T, int kSlots>
void PackedWeights<T, kSlots>::input(int64_t n, ConstRows<T> x, Rows<T> to) const {
  if (!takes_sums_) return input_(n, x, {}, 0, to);
  const int64_t H = weights_.H;
  for (int64_t r = 0; r < n; ++r) {
    const T* sums = x[r];
    T* part = to[r];
    for_each_block<T>(1, weights_.padded, [&](auto lanes, int64_t, int64_t k) {
      constexpr int W = decltype(lanes)::W;
      for (int slot = 0; slot < kSlots; ++slot) {
        const int gate = from_x_.gate[slot];
        if (W == kMaxWidth<T> && gate < 0) continue;
        for (int64_t i = 0; i < W; ++i)
          *part++ = gate >= 0 && k + i < H ? sums[gate * all_ + first_ + k + i] : T(0);
      }
    });
    std::memset(part, 0, (to[r] + input_width - part) * sizeof(T));
  }
}

// The panels: those of a cell with one slot as everywhere, otherwise a panel for each block.
template <typename T, int kSlots>
void PackedWeights<T, kSlots>::pack(const Layer<T>& layer, const Slots<kSlots>& slots,
                                    const Columns& column, int64_t inputs, T* panels) {
  if constexpr (kSlots == 1) {
    panels_by_columns<T>(inputs, layer.padded, column, panels);
  } else {
    const int64_t all = kSlots * layer.padded;
    for_each_block<T>(1, layer.padded, [&](auto lanes, int64_t, int64_t k) {
      constexpr int W = decltype(lanes)::W, kWidth = kMaxWidth<T>;
      T* to = panels + columns_of<T>(slots, k) * inputs;
      for (int v = 0; v < kSlots * W / kWidth; ++v) {
        if (W == kWidth && slots.gate[v] < 0) continue;
        rows_of_columns<T>(inputs, kSlots * k + v * kWidth, all, column, to,
                           columns_of<T>(slots, W));
        to += kWidth;
      }
    });
  }
}

template <typename T>
BackwardWeights<T>::BackwardWeights(const Layer<T>& layer, int gates, bool needed)
    : w_hh(needed ? gates * layer.all_padded : 0, layer.padded_P),
      w_hr(needed && layer.w_hr ? layer.P : 0, layer.padded) {
  if (!needed) return;
  panels_by_rows<T>(
      gates * layer.all_padded, layer.padded_P, layer.shown,
      [&](int64_t k) {
        const int64_t gate = k / layer.all_padded, unit = k % layer.all_padded;
        return unit < layer.all ? layer.w_hh + (gate * layer.all + unit) * layer.P + layer.first
                                : nullptr;
      },
      w_hh.panels());
  if (layer.w_hr)
    panels_by_rows<T>(
        layer.P, layer.padded, layer.H, [&](int64_t p) { return layer.w_hr + p * layer.H; },
        w_hr.panels());
}

}  // namespace bppsa::BPPSA_ISA
