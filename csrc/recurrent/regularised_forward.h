// The forward of recurrent/regularised.h: all steps of a group of samples, step by step.
#pragma once

#include "../simd/parallel.h"
#include "regularised.h"

namespace bppsa::BPPSA_ISA {

template <class Cell, bool kNormalised, typename T>
struct RegularisedForward {
  using Layer = RegularisedLayer<Cell, kNormalised, T>;
  using Saved = typename Layer::Saved;
  using V = Vec<T, kMaxWidth<T>>;
  using Math = VectorMath<T, kMaxWidth<T>>;
  static constexpr bool kHasC = Cell::kStates == 2;

  const RegularisedForwardRequest& request;
  const Layer layer{request};
  const int64_t H = layer.H, GH = layer.GH;
  const StepRows<const T> x{Layer::typed(request.x), request.x_stride[0], request.x_stride[1]};
  const StepRows<T> output{static_cast<T*>(request.output), request.step, H};
  T* const saved = static_cast<T*>(request.saved);

  // W_hh, as the state's sums read it.
  LongMatrix<T> weights(bool needed) const {
    return LongMatrix<T>::transposed(H, GH, layer.w_hh, needed && !layer.diagonal());
  }
  int64_t bytes_of_weights() const { return LongMatrix<T>::bytes(H, GH); }

  // What is kept of one step of one sample while the next is walked, and what is saved.
  struct Sample {
    T *h, *c;       // the state before the step, then after it
    T *sums, *row;  // of the state; Saved
    const T* x;
    const uint8_t* kept[2];
  };

  void group(int64_t b, int64_t n, const LongMatrix<T>& w_hh) const {
    const int64_t width = Saved::width(H);
    const Buffer<T> memory(n * (3 * H + GH) + width);
    const Rows<T> h{memory.data, H}, c{h[n], H}, masked{c[n], H}, sums{masked[n], GH};
    T* const scratch = sums[n];  // where nothing is saved
    for (int64_t r = 0; r < n; ++r) {
      begin(layer.h0.at(b + r, 0), h[r]);
      begin(kHasC ? layer.c0.at(b + r, 0) : nullptr, c[r]);
    }
    const ConstRows<T> shift{layer.shift(), 0};
    for (int64_t t = 0; t < layer.steps; ++t) {
      if (layer.enters) enter(b, n, h, masked);
      const Rows<T> entering = layer.enters ? masked : h;
      if (layer.diagonal())
        hand_to_themselves(n, entering, sums);
      else
        w_hh.multiply(n, {entering.data, H}, shift, sums);
      for (int64_t r = 0; r < n; ++r) {
        Sample s{h[r], c[r], sums[r], scratch, x.at(t, b)[r], {}};
        if (saved) s.row = saved + (t * layer.B + b + r) * width;
        for (int part = 0; part < Cell::kStates; ++part) s.kept[part] = layer.kept(part, t, b + r);
        step(s);
        std::memcpy(output.at(t, b)[r], h[r], H * sizeof(T));
      }
    }
    std::memcpy(static_cast<T*>(request.h_n) + b * H, h.data, n * H * sizeof(T));
    if (kHasC) std::memcpy(static_cast<T*>(request.c_n) + b * H, c.data, n * H * sizeof(T));
  }

 private:
  void begin(const T* from, T* to) const {
    from ? std::memcpy(to, from, H * sizeof(T)) : std::memset(to, 0, H * sizeof(T));
  }

  void enter(int64_t b, int64_t n, Rows<T> h, Rows<T> masked) const {
    for (int64_t r = 0; r < n; ++r)
      for_each_unit<T>(H, [&](auto units, int64_t k) __attribute__((always_inline)) {
        units.store(masked[r] + k, units.load(h[r] + k) * units.load(layer.enters[b + r] + k));
      });
  }

  void hand_to_themselves(int64_t n, Rows<T> entering, Rows<T> sums) const {
    const T* const shift = layer.shift();
    for (int64_t r = 0; r < n; ++r)
      for_each_unit<T>(H, [&](auto units, int64_t k) __attribute__((always_inline)) {
        V z = units.load(layer.w_hh + k) * units.load(entering[r] + k);
        if (shift) z += units.load(shift + k);
        units.store(sums[r] + k, z);
      });
  }

  // All of a cell's formula, with what its gates see of c.
  template <class Units>
  BPPSA_INLINE UnitState<V> formula(Units units, int64_t k, V (&slot)[Cell::kSlots],
                                    const UnitState<V>& before) const {
    if constexpr (kSeesC<Cell>) {
      V p[Cell::kGates];
      layer.peepholes(units, k, p);
      return Cell::template step<Math>(slot, before, p);
    } else {
      return Cell::template step<Math>(slot, before);
    }
  }

  void step(const Sample& s) const {
    if constexpr (kNormalised) normalise(s);
    T* const shown = kHasC ? s.row + Saved::kC * H : nullptr;
    for_each_unit<T>(H, [&](auto units, int64_t k) __attribute__((always_inline)) {
      V slot[Cell::kSlots];
      unrolled<Cell::kSlots>([&](auto i) __attribute__((always_inline)) {
        constexpr int from_x = Cell::FromX::slots.gate[i.value];
        constexpr int from_h = Cell::FromH::slots.gate[i.value];
        V z{};
        if constexpr (from_x >= 0) z += units.load(s.x + from_x * H + k);
        if constexpr (from_h >= 0) z += units.load(s.sums + from_h * H + k);
        slot[i.value] = activate<Cell::kActivation[i.value], T, kMaxWidth<T>>(z);
      });
      UnitState<V> before{};
      (kHasC ? before.c : before.h) = units.load((kHasC ? s.c : s.h) + k);
      const UnitState<V> after = formula(units, k, slot, before);
      if constexpr (Cell::kKept) {
        for (int i = 0; i < Cell::kSlots; ++i) units.store(s.row + i * H + k, slot[i]);
      } else {
        units.store(s.row + k, after.h);
      }
      if constexpr (kHasC) units.store(shown + k, after.c);
      if constexpr (!(kHasC && kNormalised)) blend(units, s.kept[0], k, after.h, s.h);
    });
    if constexpr (kHasC && kNormalised) show(s);
    if constexpr (kHasC) {
      for_each_unit<T>(H, [&](auto units, int64_t k) __attribute__((always_inline)) {
        blend(units, s.kept[1], k, units.load(shown + k), s.c);
      });
      std::memcpy(s.row + Saved::kCAfter * H, s.c, H * sizeof(T));
    }
  }

  // The state of units from k on: the new one, the old one, or something of both.
  template <class Units>
  BPPSA_INLINE void blend(Units units, const uint8_t* kept, int64_t k, V now, T* state) const {
    if (layer.blends) {
      const V old = units.load(state + k);
      // (Nothing of the old one is not 0 times it, which may be infinite.)
      if (layer.share != 0) now += layer.share * (old - now);
      if (kept) now = select<T, kMaxWidth<T>>(units.mask(kept + k), old, now);
    }
    units.store(state + k, now);
  }

  // The sums of the state, block by block, normalised.
  void normalise(const Sample& s) const {
    using Blocks = Normalised<Cell>;
    T* const moments = s.row + Saved::kRows * H;
    for (int i = 0; i < 4; ++i) moments[i] = 0;
    for (int block = 0; block < Blocks::kBlocks; ++block) {
      const int64_t first = Blocks::begin(block) * H, count = Blocks::gates(block) * H;
      T *sums = s.sums + first, *normal = s.row + Saved::kSums * H + first;
      const Moments<T> of = moments_of<T>(sums, count);
      const T *gain = layer.norm_hh + first, *shift = layer.b_hh ? layer.b_hh + first : nullptr;
      moments[block] = of.scale;
      for_each_unit<T>(count, [&](auto units, int64_t k) __attribute__((always_inline)) {
        const V v = (units.load(sums + k) - of.mean) * of.scale;
        units.store(normal + k, v);
        V z = units.load(gain + k) * v;
        if (shift) z += units.load(shift + k);
        units.store(sums + k, z);
      });
    }
  }

  // h of a normalised c.
  void show(const Sample& s) const {
    const T* c = s.row + Saved::kC * H;
    const Moments<T> of = moments_of<T>(c, H);
    T* const moments = s.row + Saved::kRows * H + 2;
    moments[0] = of.mean, moments[1] = of.scale;
    for_each_unit<T>(H, [&](auto units, int64_t k) __attribute__((always_inline)) {
      V z = units.load(layer.norm_c + k) * ((units.load(c + k) - of.mean) * of.scale);
      if (layer.b_c) z += units.load(layer.b_c + k);
      // (o is an LSTM's last slot.)
      const V o = units.load(s.row + (Cell::kSlots - 1) * H + k);
      blend(units, s.kept[0], k, o * Math::tanh(z), s.h);
    });
  }
};

template <class Cell, bool kNormalised, typename T>
void regularised_forward_of(const RegularisedForwardRequest& request, const Parallel& parallel) {
  const RegularisedForward<Cell, kNormalised, T> forward{request};
  const SampleGroups groups(request.B, parallel.threads);
  for_each_index_reading(
      parallel, groups.count, forward.bytes_of_weights(),
      [&](bool needed) { return forward.weights(needed); },
      [&](int64_t i, const LongMatrix<T>& w_hh) {
        forward.group(groups.begin(i), groups.size(i), w_hh);
      });
}

}  // namespace bppsa::BPPSA_ISA
