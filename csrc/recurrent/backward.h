// The backward of a recurrent layer: the scan over its transposed Jacobians, then the products
// that give the gradients of parameters and inputs.
//
// The linear scan goes through the chain slab by slab of steps, newest first, so that the
// gradients of the pre-activations are still in the caches when the products read them, and never
// take the memory of all T steps. Where there are samples for every thread, each takes its own all
// the way, without waiting for another; where there are fewer, the threads left over work on the
// products of one slab while the next is scanned. Of few samples with large weights each takes
// units (backward_by_units.h). The parallel scans take at once what they can get.
//
// A gradient that enters at the last step alone has faded to zero after some hundred steps: a slab
// that none reaches is passed over. So that the parallel scans need not compose what none reaches,
// they leave a silence to a walk as long as the gradient fades quickly in it.
#pragma once

#include "../scan/scan.h"
#include "backward_by_units.h"
#include "ragged.h"

namespace bppsa::BPPSA_ISA {

template <class Cell_>
struct LayerBackward {
  using Cell = Cell_;
  using T = typename Cell::T;
  using Chain = LayerChain<Cell>;

  const RecurrentBackwardRequest& request;
  const Parallel& parallel;
  const Layer<T> layer{request};
  const int64_t B = layer.B, state = Chain::state(layer);
  const int64_t row = kRowsOfD<Cell>.width(layer);
  const int64_t kept_row = Cell::kKept * layer.padded;
  // Whether the gates were not kept: they are computed again, a slab at a time.
  bool recomputes() const { return Cell::kKept && request.kept_width != kept_row; }
  ParameterGradients<T> gradients{kRowsOfD<Cell>, layer, request, parallel};

  // Rearranged for the backward, and for the forward's steps, where these are computed again.
  struct Weights {
    BackwardWeights<T> backward;
    PackedWeightsOf<Cell> forward;

    explicit Weights(const LayerBackward& self, bool needed = true)
        : backward(self.layer, Cell::kGates, needed),
          forward(kGatesOfSlots<Cell>, self.layer, needed && self.recomputes()) {}
  };

  // Calls body(i, weights) for i in [0, n).
  template <class Body>
  void for_each_index_with_weights(int64_t n, const Body& body) const {
    const int64_t bytes = BackwardWeights<T>::bytes(layer, Cell::kGates) +
                          (recomputes() ? PackedWeightsOf<Cell>::bytes(layer) : 0);
    for_each_index_reading(
        parallel, n, bytes, [&](bool needed) { return Weights(*this, needed); }, body);
  }

  // Memory of a slab's rows.
  struct Memory {
    Buffer<T> d, kept;
    Memory(const LayerBackward& self, int64_t rows)
        : d(rows * self.row), kept(self.recomputes() ? rows * self.kept_row : 0) {}
  };

  // Steps a slab of n samples: rows enough to be worth their overhead, few enough for the
  // second-level cache, and few enough steps that a gradient fades within a part of the chain.
  int64_t slab_steps(int64_t n) const {
    constexpr int64_t kBytes = 128 << 10, kRows = 256, kSteps = 128, kSlabs = 16;
    const int64_t bytes = (row + (recomputes() ? kept_row : 0)) * sizeof(T);
    const int64_t steps = max(int64_t(1), max(kRows, kBytes / bytes) / n);
    return min(layer.steps, min(steps, max(kSteps, layer.steps / kSlabs)));
  }

  Slab<T> slab(int64_t hi, int64_t steps, int64_t b, int64_t n, const Memory& memory) const {
    const int64_t lo = max(int64_t(0), hi - steps);
    const StepRows<T> d{memory.d.data, n * row, row};
    if (recomputes()) return {{lo, hi, b, n, d}, {memory.kept.data, n * kept_row, kept_row}};
    return {{lo, hi, b, n, d}, {layer.kept.at(lo, b).data, layer.kept.step, layer.kept.sample}};
  }

  Chain chain(const Weights& weights, const Slab<T>& slab, T* carry) const {
    return {layer, request, weights.backward, slab, carry};
  }

  // What the forward did not keep of one step, computed again from the state that it put out. Steps
  // depend on nothing but those, so they run in any order.
  struct Recompute {
    const LayerBackward& self;
    const PackedWeightsOf<Cell>& weights;
    const int64_t width = weights.input_width;
    const int64_t zeros = self.recomputes() ? self.layer.padded_P + self.layer.padded : 0;
    Buffer<T> memory{self.recomputes() ? self.B * (2 * self.layer.padded + width) : 0};
    Buffer<T> nothing{zeros};

    Recompute(const LayerBackward& self, const Weights& weights)
        : self(self), weights(weights.forward) {
      std::memset(nothing.data, 0, zeros * sizeof(T));
    }

    void operator()(const Slab<T>& slab, const Memory& to, int64_t t) {
      const Layer<T>& layer = self.layer;
      const int64_t padded = layer.padded;
      ForwardStep<T> step{};
      step.n = slab.n;
      step.out = {memory.data, padded};
      step.c_next = {memory.data + slab.n * padded, padded};
      if (weights.input_apart) {
        T* from_x = memory.data + 2 * slab.n * padded;
        weights.input(slab.n, layer.x(t, slab.b), {from_x, width});
        step.x_part = {from_x, width};
      } else {
        step.x = layer.x(t, slab.b);
      }
      step.h = t > 1 || layer.h0 ? layer.h(t - 1, slab.b) : ConstRows<T>{nothing.data, 0};
      step.before = {nothing.data, 0};  // the state after the step is not wanted
      if constexpr (kSeesC<Cell>) {
        for (int64_t r = 0; r < slab.n; ++r)
          copy_padded(layer.H, layer.c(t - 1, slab.b).at(r, 0), step.c_next[r]);
        step.before = {step.c_next.data, padded};
      }
      step.gates = Rows<T>{to.kept.data, self.kept_row}.from((t - 1 - slab.lo) * slab.n);
      forward_step_of_rows<Cell>(*weights, step);
      // The backward reads c_t where a projection hides tanh(c_t).
      if constexpr (Cell::kStates == 2)
        for (int64_t r = 0; r < slab.n; ++r)
          copy_units(padded, layer.c(t, slab.b)[r], step.gates[r] + Cell::kSlots * padded);
    }
  };

  void run(const Plan& plan) {
    const SampleGroups groups = RaggedGroup::groups(request, parallel.threads);
    if (B == 0) return gradients.finish();
    if (request.lengths)
      group_by_group(groups);
    else if (plan.algorithm != Algorithm::linear)
      in_stretches(plan);
    else if (const auto parts = UnitParts<T>::template of<Cell>(layer, parallel.threads);
             parts.count > 1 && !recomputes())
      B == 1 ? by_units<true>(parts) : by_units<false>(parts);
    else if (groups.count >= parallel.threads)
      group_by_group(groups);
    else
      in_a_pipeline(groups);
    gradients.finish();
  }

 private:
  void enter(int64_t b, int64_t n, T* g) const {
    Chain::enter(request, layer, layer.steps, b, n, g);
  }
  void leave(int64_t b, int64_t n, const T* g) const { Chain::leave(request, layer, b, n, g); }

  // Whether no gradient reaches a slab: neither by what is carried into it nor directly.
  bool unreached(const Slab<T>& slab, const T* carry) const {
    return all_zero(carry, slab.n * state) && silent(slab);
  }

  bool silent(const Slab<T>& slab) const { return is_silent<Cell>(request, slab); }

  // Where no gradient enters, probes of 1/64 of the chain are walked, until nothing is left of what
  // is carried; or until one of them has not faded it by a sixteenth of the type's range, at which
  // rate a quarter of the chain would be walked: the rest is scanned then.
  void in_stretches(const Plan& plan) {
    constexpr T kFaded = sizeof(T) == 4 ? 0x1p-8 : 0x1p-64;
    const int64_t probe = ceil_div(layer.steps, 64), size = B * state;
    const Weights weights(*this);
    const Memory memory(*this, layer.steps * B);
    Buffer<T> carry(size);
    enter(0, B, carry.data);
    bool fades = true;
    for (int64_t hi = layer.steps, lo; hi > 0; hi = lo) {
      const auto silent_below = [&](int64_t end) { return silent(slab(end, probe, 0, B, memory)); };
      const bool enters = !silent_below(hi);
      lo = hi - min(probe, hi);
      if (!enters && all_zero(carry.data, size)) {
        gradients.add_nothing(slab(hi, hi - lo, 0, B, memory));
        fades = true;
        continue;
      }
      if (enters)
        while (lo > 0 && !silent_below(lo)) lo -= min(probe, lo);
      else if (!fades)
        lo = 0;
      const Slab<T> now = slab(hi, hi - lo, 0, B, memory);
      if (recomputes())
        for_each_index(
            parallel, now.steps(), [&] { return Recompute(*this, weights); },
            [&](int64_t i, Recompute& recompute) { recompute(now, memory, lo + i + 1); });
      const T before = max_abs(carry.data, size);
      if (enters || !fades)
        scan(chain(weights, now, carry.data), plan, parallel);
      else
        linear_scan(chain(weights, now, carry.data), parallel);
      fades = enters || max_abs(carry.data, size) < kFaded * before;
      for_each_index(parallel, parallel.threads,
                     [&](int64_t i) { gradients.add_share(0, i, parallel.threads, now); });
    }
    leave(0, B, carry.data);
  }

  template <bool kAlone>
  void by_units(const UnitParts<T>& parts) {
    BackwardByUnits<Cell, kAlone>{request, layer, gradients, parts, slab_steps(B), row}.run(
        parallel);
  }

  // Each worker takes whole groups of samples.
  void group_by_group(const SampleGroups& groups) {
    const int64_t workers = parallel.threads;
    for_each_index_with_weights(workers, [&](int64_t worker, const Weights& weights) {
      const int64_t first = groups.count * worker / workers;
      const int64_t end = groups.count * (worker + 1) / workers;
      for (int64_t i = first; i < end; ++i) {
        const int64_t b = groups.begin(i), n = groups.size(i), rows = slab_steps(n) * n;
        const RaggedGroup ragged{request.lengths, layer.steps, b, n};
        const Memory memory(*this, rows);
        Buffer<T> carry(n * state);
        Recompute recompute(*this, weights);
        int64_t entered = 0;
        for (int64_t hi = layer.steps, lo; hi > 0; hi = lo) {
          const Run run = ragged.up_to(hi);
          Chain::enter(request, layer, hi, b + entered, run.n - entered,
                       carry.data + entered * state);
          entered = run.n;
          const int64_t most = hi - run.first + 1;
          const int64_t steps = run.n ? min(most, min(slab_steps(run.n), rows / run.n)) : most;
          lo = hi - steps;
          if (run.n < n) gradients.add_nothing({lo, hi, b + run.n, n - run.n, {}});
          if (!run.n) continue;
          const Slab<T> now = slab(hi, steps, b, run.n, memory);
          if (unreached(now, carry.data)) {
            gradients.add_nothing(now);
            continue;
          }
          if (recomputes())
            for (int64_t t = now.lo + 1; t <= now.hi; ++t) recompute(now, memory, t);
          walk_samples(chain(weights, now, carry.data), 0, run.n);
          gradients.add(worker, now);
        }
        leave(b, n, carry.data);
      }
    });
  }

  // Some threads scan slab i, the others do what comes after slab i - 1 and before slab i + 1.
  // Those two share their memory: of slab i - 1 only d is read by then, of slab i + 1 only what a
  // forward keeps is written.
  void in_a_pipeline(const SampleGroups& groups) {
    const int64_t workers = parallel.threads, helpers = workers - groups.count;
    const int64_t steps = slab_steps(B), slabs = ceil_div(layer.steps, steps);
    const Weights weights(*this);
    const Memory memories[2] = {Memory(*this, steps * B), Memory(*this, steps * B)};
    Buffer<T> carry(B * state);
    const auto number = [&](int64_t i) {
      Slab<T> of_all = slab(layer.steps - i * steps, steps, 0, B, memories[i % 2]);
      of_all.read_by_other_core = true;
      return of_all;
    };
    enter(0, B, carry.data);
    const auto prepare = [&](int64_t i, int64_t share, int64_t shares) {
      if (!recomputes() || i >= slabs) return;
      const Slab<T> next = number(i);
      Recompute recompute(*this, weights);
      const int64_t n = next.steps();
      for (int64_t k = n * share / shares; k < n * (share + 1) / shares; ++k)
        recompute(next, memories[i % 2], next.lo + 1 + k);
    };
    for_each_index(parallel, workers, [&](int64_t w) { prepare(0, w, workers); });
    bool reached_before = false, next = true;
    for (int64_t i = 0; i < slabs; ++i) {
      const bool reached = next && !unreached(number(i), carry.data);
      if (!reached) gradients.add_nothing(number(i));
      next = i + 1 < slabs && (reached || !silent(number(i + 1)));
      if (reached || reached_before || next)
        for_each_index(parallel, workers, [&](int64_t w) {
          if (w < groups.count) {
            if (reached)
              walk_samples(chain(weights, number(i), carry.data), groups.begin(w), groups.size(w));
          } else {
            const int64_t share = w - groups.count;
            if (reached_before) gradients.add_share(groups.count, share, helpers, number(i - 1));
            if (next) prepare(i + 1, share, helpers);
          }
        });
      reached_before = reached;
    }
    if (reached_before)
      for_each_index(parallel, workers,
                     [&](int64_t w) { gradients.add_share(0, w, workers, number(slabs - 1)); });
    leave(0, B, carry.data);
  }
};

template <class Cell>
void layer_backward(const RecurrentBackwardRequest& request, const Plan& plan,
                    const Parallel& parallel) {
  LayerBackward<Cell>(request, parallel).run(plan);
}

}  // namespace bppsa::BPPSA_ISA
