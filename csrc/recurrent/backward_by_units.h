// The linear backward of few samples: each thread has units of its own (by_units.h), and after each
// slab of steps its share of the products.
//
// A step takes two phases: the gradients of the part's own pre-activations, then, when all have
// written theirs, those of its part of the state before. The second goes with the first of the step
// before it, so that a step waits once.
#pragma once

#include <atomic>

#include "by_units.h"
#include "gradients.h"

namespace bppsa::BPPSA_ISA {

template <class Cell, bool kAlone>
struct BackwardByUnits {
  using T = typename Cell::T;
  using Chain = LayerChain<Cell, true>;

  const RecurrentBackwardRequest& request;
  const Layer<T>& layer;
  const ParameterGradients<T>& gradients;
  const UnitParts<T> parts;
  const int64_t steps, row;  // of a slab; numbers in a row of d
  const int64_t B = kAlone ? 1 : layer.B;
  const int64_t slabs = ceil_div(layer.steps, steps);
  // Two, as one slab's products are still read where the next one's are written.
  const Buffer<T> memory{2 * steps * B * row};
  // Of each slab, whether a gradient of some part's state reaches it.
  const Array<std::atomic<bool>> reaches{slabs};

  Slab<T> slab(int64_t i) const {
    const int64_t hi = layer.steps - i * steps, lo = max(int64_t(0), hi - steps);
    const StepRows<T> d{memory.data + i % 2 * steps * B * row, B * row, row};
    return {{lo, hi, 0, B, d}, {layer.kept.at(lo, 0).data, layer.kept.step, layer.kept.sample}};
  }

  // What one thread does.
  struct Part {
    const BackwardByUnits& all;
    const int64_t index;
    const Layer<T> layer{all.request, all.parts.begin(index), all.parts.size(index)};
    const BackwardWeights<T> weights{layer, Cell::kGates, true};
    const int64_t state = Chain::state(layer), size = all.B * state;
    const Buffer<T> memory{2 * size + all.B * layer.padded};
    T *g = memory.data, *out = g + size, *const scratch = out + size;
    bool reached = false;  // the slab it is in

    Part(const BackwardByUnits& all, int64_t index) : all(all), index(index) {
      Chain::enter(all.request, layer, layer.steps, 0, all.B, g);
      tell(0);
    }

    // Phase `phase` of a slab: all but the last begin with what the phase before has left.
    void operator()(int64_t i, int64_t phase) {
      if (phase == 0) begin(i);
      if (!reached || phase > all.slab(i).steps()) return;
      const Slab<T> slab = all.slab(i);
      const Chain chain{layer, all.request, weights, slab, nullptr};
      const int64_t t = slab.steps() - phase;
      if (phase > 0) push(chain, slab, t + 1);
      if (t > 0) pull(chain, slab, t);
      if (t == 0) tell(i + 1);
    }

    // The products of the slab before, and whether anything is to be done in this one.
    void begin(int64_t i) {
      if (i > 0 && reached) all.gradients.add_share(0, index, all.parts.count, all.slab(i - 1));
      if (i == all.slabs) return Chain::leave(all.request, layer, 0, all.B, g);
      reached = all.reaches[i].load(std::memory_order_relaxed) || !all.silent(i);
      if (reached) return;
      if (index == 0) all.gradients.add_nothing(all.slab(i));
      tell(i + 1);
    }

    void tell(int64_t i) const {
      if (i < all.slabs && !all_zero(g, size))
        all.reaches[i].store(true, std::memory_order_relaxed);
    }

    BPPSA_INLINE BackwardStep<T> of(const Chain& chain, const Slab<T>& slab, int64_t t) const {
      BackwardStep<T> s = chain.walked(t, 0, all.B, g, out, scratch);
      s.n = kAlone ? 1 : all.B;
      s.d = slab.d.at(t - 1, 0).from_column(layer.first);
      s.scratch = scratch;
      return s;
    }
    __attribute__((noinline)) void pull(const Chain& chain, const Slab<T>& slab, int64_t t) const {
      pull_units<Cell>(layer, weights, of(chain, slab, t));
    }
    __attribute__((noinline)) void push(const Chain& chain, const Slab<T>& slab, int64_t t) {
      push_units<Cell>(layer, weights, of(chain, slab, t));
      std::swap(g, out);
    }
  };

  // Whether no direct gradient enters at the states before the steps of a slab.
  bool silent(int64_t i) const { return is_silent<Cell>(request, slab(i)); }

  void run(const Parallel& parallel) const {
    const int64_t phases = steps + 1;
    step_by_step<Part>(
        parallel, parts.count, slabs * phases + 1,
        [&](int64_t i, std::optional<Part>& place) { place.emplace(*this, i); },
        [&](Part& part, int64_t t) { part((t - 1) / phases, (t - 1) % phases); });
  }
};

}  // namespace bppsa::BPPSA_ISA
