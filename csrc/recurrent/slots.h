// The forward of a step of a cell with four slots: first the pre-activations of all blocks of
// units, then activations and the cell's own maths, block by block. (Not block by block from the
// start: a block is one chain of latencies, of which the processor hides one behind another only
// where they lie close together.)
//
//   whole vectors        a vector holds one slot of a sample
//   narrower blocks      a vector holds two or four slots of a sample; as many samples as fill
//                        vectors are turned over into one vector a slot, a single one's slots are
//                        activated as they lie
#pragma once

#include "../simd/activations.h"
#include "packed_weights.h"

namespace bppsa::BPPSA_ISA {

template <Activation f, typename T, int W>
BPPSA_INLINE Vec<T, W> activate(Vec<T, W> z) {
  if constexpr (f == Activation::sigmoid) return sigmoid<T, W>(z);
  if constexpr (f == Activation::tanh) return tanh<T, W>(z);
  return z;
}

// f(Constant<0>{}), f(Constant<1>{}), ... f(Constant<n - 1>{}).
template <int n, int i = 0, class F>
BPPSA_INLINE void unrolled(const F& f) {
  if constexpr (i < n) {
    f(Constant<i>{});
    unrolled<n, i + 1>(f);
  }
}

// Part i of a vector of parts of W numbers.
template <int W, int i, typename T, int kAll>
BPPSA_INLINE Vec<T, W> part(Vec<T, kAll> v) {
  if constexpr (W == kAll)
    return v;
  else if constexpr (i < kAll / W / 2)
    return part<W, i, T, kAll / 2>(low_half<T, kAll>(v));
  else
    return part<W, i - kAll / W / 2, T, kAll / 2>(high_half<T, kAll>(v));
}

// Vector v of a block of W units, without the slots that take nothing: zero weights times infinity
// would make a NaN of them.
template <class From, int W, typename T, int kWidth = kMaxWidth<T>>
BPPSA_INLINE Vec<T, kWidth> used_of(int v, Vec<T, kWidth> z) {
  // (Said beforehand: that the mask is all ones the compiler would find out too late.)
  if constexpr (From::slots.all_used()) return z;
  IntVec<T, kWidth> used;
  for (int i = 0; i < kWidth; ++i) used[i] = From::slots.gate[(v * kWidth + i) / W] < 0 ? 0 : -1;
  return select<T, kWidth>(used, z, Vec<T, kWidth>{});
}

// The pre-activations of a block of W units at k, of MR samples from `row` on: NV of the block's
// vectors, from `first` on.
template <class Cell, int W, int MR, int first, int NV, typename T = typename Cell::T>
BPPSA_INLINE void pre_activate(const ForwardWeights<T>& w, const ForwardStep<T>& s, int64_t row,
                               int64_t k) {
  using FromH = typename Cell::FromH;
  using FromX = typename Cell::FromX;
  constexpr int kSlots = Cell::kSlots, kWidth = kMaxWidth<T>;
  // As in a Tile: enough multiply-adds in flight.
  constexpr int KU = MR * NV >= 8 ? 1 : 4;
  // Slots that take nothing share vectors with others in narrow blocks: then x has sums of its own.
  constexpr bool kApart = W < kWidth && !(FromH::slots.all_used() && FromX::slots.all_used());
  using V = Vec<T, kWidth>;
  V sum[KU][MR][NV], sum_x[MR][NV];
  // One by one: zeros for all at once would take them to memory.
  for (int r = 0; r < MR; ++r)
    for (int v = 0; v < NV; ++v) {
      for (int u = 0; u < KU; ++u) sum[u][r][v] = V{};
      sum_x[r][v] = V{};
    }
  const auto multiply_add = [&](auto from, auto apart, int64_t K, const ConstRows<T>& rows,
                                const T* panels) __attribute__((always_inline)) {
    constexpr Slots<kSlots> slots = decltype(from)::slots;
    constexpr int64_t kColumns = columns_of<T>(slots, W);
    const T* panel = panels + columns_of<T>(slots, k) * K;
    const T* a = rows[row];
    const auto step = [&](V(&part)[MR][NV], int64_t i) __attribute__((always_inline)) {
      int column = W == kWidth ? slots.used(first) : first;
      for (int v = 0; v < NV; ++v) {
        if (W == kWidth && slots.gate[first + v] < 0) continue;
        const V x = load<T, kWidth>(panel + i * kColumns + kWidth * column++);
        for (int r = 0; r < MR; ++r) part[r][v] += a[r * rows.ld + i] * x;
      }
    };
    int64_t i = 0;
    if constexpr (decltype(apart)::value) {
      for (; i < K; ++i) step(sum_x, i);
    } else {
      for (; i + KU <= K; i += KU)
        for (int u = 0; u < KU; ++u) step(sum[u], i + u);
      if constexpr (KU > 1)
        for (; i < K; ++i) step(sum[0], i);
    }
  };
  multiply_add(FromH{}, Constant<0>{}, w.P, s.h, w.h);
  if (!s.x_part) multiply_add(FromX{}, Constant<kApart>{}, w.I, s.x, w.x);
  for (int r = 0; r < MR; ++r)
    for (int v = 0; v < NV; ++v) {
      const int64_t column = kSlots * k + (first + v) * kWidth;
      V z = sum[0][r][v];
      if constexpr (KU == 4) z = (z + sum[1][r][v]) + (sum[2][r][v] + sum[3][r][v]);
      if constexpr (kApart)
        z = used_of<FromH, W, T>(first + v, z) + used_of<FromX, W, T>(first + v, sum_x[r][v]);
      if (s.x_part && (W < kWidth || FromX::slots.gate[first + v] >= 0)) {
        const int in_block = W == kWidth ? FromX::slots.used(first + v) : first + v;
        const T* from = s.x_part[row + r] + columns_of<T>(FromX::slots, k) + in_block * kWidth;
        z += used_of<FromX, W, T>(first + v, load<T, kWidth>(from));
      }
      store<T, kWidth>(s.gates[row + r] + column, z + load<T, kWidth>(w.bias + column));
    }
}

// A vector of slots that lie side by side, from slot `first` on, each through its activation.
template <class Cell, int W, int first, typename T = typename Cell::T, int kWidth = kMaxWidth<T>>
BPPSA_INLINE Vec<T, kWidth> activate_side_by_side(Vec<T, kWidth> z) {
  IntVec<T, kWidth> to_tanh, to_either;
  bool any_sigmoid = false, any_tanh = false;
  for (int i = 0; i < kWidth; ++i) {
    const Activation f = Cell::kActivation[first + i / W];
    any_sigmoid = any_sigmoid || f == Activation::sigmoid;
    any_tanh = any_tanh || f == Activation::tanh;
    to_tanh[i] = f == Activation::tanh ? -1 : 0;
    to_either[i] = f == Activation::none ? 0 : -1;
  }
  if (any_sigmoid && any_tanh)
    return select<T, kWidth>(to_either, sigmoid_or_tanh<T, kWidth>(to_tanh, z), z);
  if (any_sigmoid) return select<T, kWidth>(to_either, sigmoid<T, kWidth>(z), z);
  if (any_tanh) return select<T, kWidth>(to_either, tanh<T, kWidth>(z), z);
  return z;
}

// What the gates of units k and on take of c: the same of all rows.
template <class Cell, class L, typename T = typename Cell::T>
BPPSA_INLINE void load_peepholes(const T* all, int64_t H, int64_t k,
                                 Vec<T, L::kAll> (&p)[Cell::kGates]) {
  for (int gate = 0; gate < Cell::kGates; ++gate)
    p[gate] = L::load_first(all ? all + gate * H + k : nullptr, 0, H - k);
}

// From pre-activations to the state: W units at k, of L::R samples from `row` on.
template <class Cell, class L, typename T = typename Cell::T>
BPPSA_INLINE void finish_block(const ForwardWeights<T>& w, const ForwardStep<T>& s, int64_t row,
                               int64_t k) {
  constexpr int kSlots = Cell::kSlots, W = L::W, kWidth = kMaxWidth<T>;
  T* z = s.gates[row] + kSlots * k;
  Vec<T, L::kAll> slot[kSlots];
  if constexpr (L::kAll == kWidth) {
    unrolled<kSlots>([&](auto i) __attribute__((always_inline)) {
      slot[i.value] =
          activate<Cell::kActivation[i.value], T, kWidth>(L::load(z + i.value * W, s.gates.ld));
    });
  } else {
    constexpr int kShare = kWidth / W;
    unrolled<kSlots / kShare>([&](auto v) __attribute__((always_inline)) {
      const auto active =
          activate_side_by_side<Cell, W, v.value * kShare>(load<T, kWidth>(z + v.value * kWidth));
      unrolled<kShare>([&](auto i) __attribute__((always_inline)) {
        slot[v.value * kShare + i.value] = part<W, i.value, T, kWidth>(active);
      });
    });
  }
  using V = Vec<T, L::kAll>;
  UnitState<V> before{};
  (Cell::kStates == 2 ? before.c : before.h) = L::load(s.before[row] + k, s.before.ld);
  UnitState<V> after;
  if constexpr (kSeesC<Cell>) {
    V p[Cell::kGates];
    load_peepholes<Cell, L>(w.p, w.H, k, p);
    after = Cell::template step<VectorMath<T, L::kAll>>(slot, before, p);
  } else {
    after = Cell::template step<VectorMath<T, L::kAll>>(slot, before);
  }
  if constexpr (Cell::kStates == 2) L::store(s.c_next[row] + k, s.c_next.ld, after.c);
  L::store(s.out[row] + k, s.out.ld, after.h);
  if constexpr (Cell::kStates == 2)
    if (s.kept_c) L::store(s.kept_c[row] + k, s.kept_c.ld, after.c);
  if (s.output) L::store_first(s.output[row] + k, s.output.ld, after.h, w.H - k);
  for (int i = 0; i < kSlots; ++i) L::store(z + i * W, s.gates.ld, slot[i]);
}

template <class Cell, typename T = typename Cell::T>
BPPSA_INLINE void forward_slots(const ForwardWeights<T>& w, const ForwardStep<T>& s) {
  static_assert(Cell::kSlots % (kMaxWidth<T> / kMinWidth<T>) == 0,
                "the slots of a block of the least width must fill whole vectors: add slots that "
                "take nothing from x or h");
  static_assert(Cell::kSlots == 4,
                "cpu/levels/recurrent_weights.cpp has no weights of so many slots");
  for_each_block<T>(
      1, w.padded, [&](auto lanes, int64_t, int64_t k) __attribute__((always_inline)) {
        constexpr int W = decltype(lanes)::W, kVectors = Cell::kSlots * W / kMaxWidth<T>;
        int64_t row = 0;
        // A few rows by all vectors keep the multiply-adds busy, unless one takes nothing from h.
        if constexpr (W == kMaxWidth<T> && !Cell::FromH::slots.all_used())
          if (s.x_part)
            for (; row + kTileRows <= s.n; row += kTileRows) {
              pre_activate<Cell, W, kTileRows, 0, kVectors - 1>(w, s, row, k);
              pre_activate<Cell, W, kTileRows, kVectors - 1, 1>(w, s, row, k);
            }
        constexpr int kMost = BPPSA_VECTOR_REGISTERS / 8;
        for (; row + kMost <= s.n; row += kMost)
          pre_activate<Cell, W, kMost, 0, kVectors>(w, s, row, k);
        if constexpr (kMost > 2)
          for (; row + 2 <= s.n; row += 2) pre_activate<Cell, W, 2, 0, kVectors>(w, s, row, k);
        for (; row < s.n; ++row) pre_activate<Cell, W, 1, 0, kVectors>(w, s, row, k);
      });
  for_each_block<T>(s.n, w.padded,
                    [&](auto lanes, int64_t row, int64_t k) __attribute__((always_inline)) {
                      finish_block<Cell, decltype(lanes)>(w, s, row, k);
                    });
}

}  // namespace bppsa::BPPSA_ISA
