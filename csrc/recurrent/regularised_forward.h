// The forward of recurrent/regularised.h: all steps of a group of samples, step by step.
#pragma once

#include "../simd/parallel.h"
#include "regularised_input.h"

namespace bppsa::BPPSA_ISA {

template <class Cell, bool kNormalised, typename T>
struct RegularisedForward {
  using Layer = RegularisedLayer<Cell, kNormalised, T>;
  using Saved = typename Layer::Saved;
  using Input = RegularisedInput<Cell, kNormalised, T>;
  using V = Vec<T, kMaxWidth<T>>;
  using Math = VectorMath<T, kMaxWidth<T>>;
  static constexpr bool kHasC = Cell::kStates == 2;

  const RegularisedForwardRequest& request;
  const Layer layer{request};
  const Input input{layer};
  const int64_t H = layer.H, GH = layer.GH;
  const StepRows<T> output{static_cast<T*>(request.output), request.step, H};
  T* const saved = static_cast<T*>(request.saved);

  // As sums read them.
  struct Weights {
    LongMatrix<T> hh, ih;
  };
  Weights weights(bool needed) const {
    return {LongMatrix<T>::transposed(H, GH, layer.w_hh, needed && !layer.diagonal()),
            input.for_sums(needed)};
  }
  int64_t bytes_of_weights() const { return LongMatrix<T>::bytes(H, GH) + input.bytes(); }

  // What is kept of one step of one sample while the next is walked, and what is saved.
  struct Sample {
    T *h, *c;       // the state before the step, then after it
    T *sums, *row;  // of the state; Saved
    T* later;       // a saved row to ask for, or null
    const T* x;
    const uint8_t* kept[2];
  };

  void group(int64_t b, int64_t n, const Weights& weights) const {
    const int64_t width = layer.width, slab = layer.w_ih ? input.slab(n) : 0;
    const Buffer<T> memory(n * (3 * H + GH) + (saved ? 0 : n * width) + slab * n * GH);
    const Rows<T> h{memory.data, H}, c{h[n], H}, masked{c[n], H}, sums{masked[n], GH};
    T* const scratch = sums[n];  // where nothing is saved
    const StepRows<T> of_input{scratch + (saved ? 0 : n * width), n * GH, GH};
    for (int64_t r = 0; r < n; ++r) {
      begin(layer.h0.at(b + r, 0), h[r]);
      begin(kHasC ? layer.c0.at(b + r, 0) : nullptr, c[r]);
    }
    const ConstRows<T> shift{layer.shift(), 0};
    const int64_t some = input.norm.at_a_time();
    for (int64_t t = 0; t < layer.steps; ++t) {
      if (slab && t % slab == 0) {
        const typename Input::Slab now{t, min(t + slab, layer.steps), b, n};
        input.forward(weights.ih, now, of_input.data);
      }
      const Rows<const T> x =
          slab ? Rows<const T>{of_input.at(t % slab, 0).data, GH} : layer.x.at(t, b);
      if (layer.enters) enter(b, n, h, masked);
      const Rows<T> entering = layer.enters ? masked : h;
      if (layer.diagonal())
        hand_to_themselves(n, entering, sums);
      else
        weights.hh.multiply(n, {entering.data, H}, shift, sums);
      T* const rows = saved ? saved + (t * layer.B + b) * width : scratch;
      // A few samples at a time, whose rows stay in the first-level cache.
      for (int64_t first = 0; first < n; first += some) {
        const int64_t end = min(first + some, n);
        if constexpr (kNormalised) {
          // What the state's sums are before gains and shifts is saved.
          T* const row = rows + first * width;
          const Rows<T> now = sums.from(first);
          clear_moments(end - first, row);
          input.norm.forward(end - first, {now.data, GH}, {row + Saved::kSums * H, width},
                             {row + Saved::kRows * H, width}, layer.norm_hh, layer.b_hh, now);
          if (input.normalised())
            input.normalise(end - first, of_input.at(t % slab, 0).from(first),
                            saved ? row : nullptr);
        }
        Sample samples[kRowsTogether];
        for (int64_t r = first; r < end; ++r) {
          Sample& s = samples[r - first];
          s = {h[r],
               c[r],
               sums[r],
               rows + r * width,
               layer.template later_row<1>(saved, t, b, n, r, some),
               x[r],
               {}};
          for (int part = 0; part < Cell::kStates; ++part)
            s.kept[part] = layer.kept(part, t, b + r);
          step(s);
        }
        if constexpr (kHasC && kNormalised)
          for_some_rows(end - first, true,
                        [&](auto some, int64_t row)
                            __attribute__((always_inline)) { show<some.value>(samples + row); });
        for (int64_t r = first; r < end; ++r) {
          if constexpr (kHasC) keep_c(samples[r - first]);
          std::memcpy(output.at(t, b)[r], h[r], H * sizeof(T));
        }
      }
    }
    std::memcpy(static_cast<T*>(request.h_n) + b * H, h.data, n * H * sizeof(T));
    if (kHasC) std::memcpy(static_cast<T*>(request.c_n) + b * H, c.data, n * H * sizeof(T));
  }

 private:
  void begin(const T* from, T* to) const {
    from ? std::memcpy(to, from, H * sizeof(T)) : std::memset(to, 0, H * sizeof(T));
  }

  // Not all of them are written.
  void clear_moments(int64_t samples, T* row) const {
    for (int64_t r = 0; r < samples; ++r, row += layer.width)
      std::memset(row + Saved::kRows * H, 0, Saved::kMoments * sizeof(T));
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
    T* const shown = kHasC ? s.row + Saved::kC * H : nullptr;
    const int64_t width = layer.width;
    for_each_unit<T>(H, [&](auto units, int64_t k) __attribute__((always_inline)) {
      V slot[Cell::kSlots];
      if (s.later)
        for (int64_t i = k; i < width; i += H) prefetch_to_write(s.later + i, 1);
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
  }

  void keep_c(const Sample& s) const {
    const T* const shown = s.row + Saved::kC * H;
    for_each_unit<T>(H, [&](auto units, int64_t k) __attribute__((always_inline)) {
      blend(units, s.kept[1], k, units.load(shown + k), s.c);
    });
    if (layer.blends) std::memcpy(s.row + Saved::c_after(H, true), s.c, H * sizeof(T));
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

  // h of a normalised c, of R samples whose rows lie one after another.
  template <int R>
  BPPSA_INLINE void show(const Sample* s) const {
    const Moments<T, R> of(H, Saved::kC * H, {s->row, layer.width});
    for (int r = 0; r < R; ++r) {
      T* const moments = s[r].row + Saved::kRows * H + Saved::kMomentsOfC;
      moments[0] = of.mean[r], moments[1] = of.scale[r];
    }
    for_each_unit<T>(H, [&](auto units, int64_t k) __attribute__((always_inline)) {
      const V gain = units.load(layer.norm_c + k);
      const V shift = layer.b_c ? units.load(layer.b_c + k) : V{};
      for (int r = 0; r < R; ++r) {
        const T* const row = s[r].row + k;
        const V z = gain * ((units.load(row + Saved::kC * H) - of.mean[r]) * of.scale[r]) + shift;
        // (o is an LSTM's last slot.)
        const V o = units.load(row + (Cell::kSlots - 1) * H);
        blend(units, s[r].kept[0], k, o * Math::tanh(z), s[r].h);
      }
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
      [&](int64_t i, const auto& weights) {
        forward.group(groups.begin(i), groups.size(i), weights);
      });
}

}  // namespace bppsa::BPPSA_ISA
