// One step of a cell over rows of samples, forwards and backwards: what the layer's memory and its
// weights are to the cell's formula.
#pragma once

#include "slots.h"

namespace bppsa::BPPSA_ISA {

// A cell with one slot takes its sums through the tiles of the product.
template <class Cell, typename T = typename Cell::T>
BPPSA_INLINE void forward_tiles(const ForwardWeights<T>& w, const ForwardStep<T>& s) {
  const Columns<T, kMaxWidth<T>> columns(w.padded);
  for_each_tile(s.n, columns, [&](auto& tile) __attribute__((always_inline)) {
    tile.clear();
    tile.multiply_add_panel(w.P, s.h, w.h);
    if (!s.x_part) tile.multiply_add_panel(w.I, s.x, w.x);
    tile.sum();
    if (s.x_part) tile.add_rows(s.x_part);
    tile.add_row(w.bias);
    tile.map([](auto z) __attribute__((always_inline)) {
      constexpr int W = sizeof(z) / sizeof(T);
      Vec<T, W> slot[] = {z};
      return Cell::template step<VectorMath<T, W>>(slot, UnitState<Vec<T, W>>{}).h;
    });
    tile.store_rows(s.out);
  });
  if (s.output)
    for (int64_t r = 0; r < s.n; ++r) copy_units(w.H, s.out[r], s.output[r]);
}

template <class Cell, typename T = typename Cell::T>
BPPSA_INLINE void forward_step(const ForwardWeights<T>& w, const ForwardStep<T>& s) {
  if constexpr (Cell::kSlots == 1)
    forward_tiles<Cell>(w, s);
  else
    forward_slots<Cell>(w, s);
}

// Of several rows, which are worth a call: one function for the forward and for what the backward
// computes again.
template <class Cell, typename T = typename Cell::T>
__attribute__((noinline)) void forward_step_of_rows(const ForwardWeights<T>& w,
                                                    const ForwardStep<T>& s) {
  forward_step<Cell>(w, s);
}

// What a cell's factors are made of, of units k and on of some rows.
template <class Cell, class L, typename T = typename Cell::T>
struct Seen {
  using V = Vec<T, L::kAll>;
  V slot[Cell::kSlots];
  V output{}, before{};

  BPPSA_INLINE Seen(const Layer<T>& layer, const BackwardStep<T>& s, int64_t row, int64_t k) {
    const int64_t H = layer.H, ld = s.kept.ld;
    if constexpr (Cell::kKept == 0) {
      output = L::load_first(s.h.at(row, k), s.h.ld, H - k);
      return;
    }
    const T* kept = s.kept[row] + Cell::kSlots * k;
    for (int i = 0; i < Cell::kSlots; ++i) slot[i] = L::load(kept + i * L::W, ld);
    if constexpr (Cell::kStates == 1) {
      before = L::load_first(s.h_prev.at(row, k), s.h_prev.ld, H - k);
    } else {
      using Math = VectorMath<T, L::kAll>;
      output = layer.w_hr ? Math::tanh(L::load(s.kept.at(row, Cell::kSlots * layer.padded + k), ld))
                          : Cell::template tanh_c<Math>(
                                slot, L::load_first(s.h.at(row, k), s.h.ld, H - k));
      before = L::load_first(s.c_prev.at(row, k), s.c_prev.ld, s.c_width - k);
    }
  }
};

// scratch = g_m = g_h W_hr, and g_h beside d. (By value: the caller's steps stay in registers.)
template <class Cell, typename T = typename Cell::T>
void project_back(const Layer<T>& layer, const BackwardWeights<T>& w, const BackwardStep<T> s) {
  const int64_t padded = layer.padded, padded_P = layer.padded_P;
  w.w_hr(s.n, s.g, {}, 0, {s.scratch, padded});
  for (int64_t row = 0; row < s.n; ++row)
    std::memcpy(s.d[row] + Cell::kRows * padded, s.g[row], padded_P * sizeof(T));
}

// A row of s.d: the cell's kRows blocks; with a projection also g_h and the unprojected output,
// whose products are W_hr's gradient. Of units, all that does not need the others.
template <class Cell, typename T = typename Cell::T>
BPPSA_INLINE void pull_units(const Layer<T>& layer, const BackwardWeights<T>& w,
                             const BackwardStep<T>& s) {
  constexpr bool kHasC = Cell::kStates == 2;
  const int64_t padded = layer.padded, padded_P = layer.padded_P, block = layer.all_padded;
  const bool projected = kHasC && layer.w_hr;
  if (projected) project_back<Cell>(layer, w, s);
  const ConstRows<T> g_h = projected ? ConstRows<T>{s.scratch, padded} : s.g;
  for_each_block<T>(
      s.n, padded, [&](auto lanes, int64_t row, int64_t k) __attribute__((always_inline)) {
        using L = decltype(lanes);
        using V = Vec<T, L::kAll>;
        using Math = VectorMath<T, L::kAll>;
        const Seen<Cell, L> seen(layer, s, row, k);
        // All loads come first: one that branches would part the products from the sums below.
        V u{};
        if constexpr (Cell::kPassesH)
          u = L::load_first(s.direct.at(row, k), s.direct.ld, layer.H - k);
        V g[Cell::kStates], row_of_d[Cell::kRows], past[Cell::kStates];
        g[0] = L::load(g_h[row] + k, g_h.ld);
        if constexpr (kHasC) g[1] = L::load(s.g[row] + padded_P + k, s.g.ld);
        if constexpr (kSeesC<Cell>) {
          V p[Cell::kGates];
          load_peepholes<Cell, L>(layer.b_hh, layer.H, k, p);
          const auto factors = Cell::template factors<Math>(seen.slot, seen.output, seen.before, p);
          Cell::template pull<Math>(factors, g, row_of_d, past);
        } else {
          const auto factors = Cell::template factors<Math>(seen.slot, seen.output, seen.before);
          Cell::template pull<Math>(factors, g, row_of_d, past);
        }
        T* d = s.d[row] + k;
        for (int i = 0; i < Cell::kRows; ++i) L::store(d + i * block, s.d.ld, row_of_d[i]);
        if constexpr (kHasC) {
          L::store(s.out[row] + padded_P + k, s.out.ld, past[1]);
          if (projected)
            L::store(d + Cell::kRows * block + padded_P, s.d.ld,
                     Cell::unprojected(seen.slot, seen.output));
        }
        if constexpr (Cell::kPassesH) L::store(s.scratch + row * padded + k, padded, past[0] + u);
      });
  if (layer.first + layer.H == layer.all)
    clear_padding(s.n, Cell::kRows, layer.all, s.d.data - layer.first, s.d.ld);
}

// g_{t-1} of the units, from the gradients of all pre-activations.
template <class Cell, typename T = typename Cell::T>
BPPSA_INLINE void push_units(const Layer<T>& layer, const BackwardWeights<T>& w,
                             const BackwardStep<T>& s) {
  const T* first = s.d.data - layer.first + Cell::kFirstRecurrentRow * layer.all_padded;
  if constexpr (Cell::kPassesH)
    w.w_hh(s.n, {first, s.d.ld}, {s.scratch, layer.padded}, layer.padded, s.out);
  else
    w.w_hh(s.n, {first, s.d.ld}, s.direct, layer.shown, s.out);
}

template <class Cell, typename T = typename Cell::T>
BPPSA_INLINE void backward_step(const Layer<T>& layer, const BackwardWeights<T>& w,
                                const BackwardStep<T>& s) {
  pull_units<Cell>(layer, w, s);
  push_units<Cell>(layer, w, s);
}

}  // namespace bppsa::BPPSA_ISA
