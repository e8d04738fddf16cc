// The backward of a recurrent layer: the scan over its transposed Jacobians, then the products
// that give the gradients of parameters and inputs.
//
// The linear scan goes through the chain slab by slab of steps, newest first, so that the
// gradients of the pre-activations are still in the caches when the products read them, and never
// take the memory of all T steps. Where there are samples for every thread, each takes its own all
// the way, without waiting for another; where there are fewer, the threads left over work on the
// products of one slab while the next is scanned. The parallel scans need the whole chain at once.
#pragma once

#include "../scan/scan.h"
#include "gradients.h"

namespace bppsa::BPPSA_ISA {

template <class Cell_>
struct LayerBackward {
  using Cell = Cell_;
  using T = typename Cell::T;
  using Chain = LayerChain<Cell>;

  const RecurrentBackwardRequest& request;
  const Layer<T> layer;
  const Parallel& parallel;
  const int64_t B, row, kept_row;
  // Whether the gates were not kept: they are computed again, a slab at a time.
  const bool recomputes;
  const int64_t state;
  const BackwardWeights<T> weights;
  const PackedWeights<Cell> forward_weights;
  ParameterGradients<Cell> gradients;

  LayerBackward(const RecurrentBackwardRequest& request, const Parallel& parallel)
      : request(request),
        layer(request),
        parallel(parallel),
        B(layer.B),
        row(ParameterGradients<Cell>::row_width(layer)),
        kept_row(Cell::kKept * layer.padded),
        recomputes(request.kept_width != kept_row),
        state(Chain::state(layer)),
        weights(layer, Cell::kGates),
        forward_weights(layer, recomputes),
        gradients(layer, request, parallel) {}

  // Memory of a slab's rows.
  struct Memory {
    Buffer<T> d, kept;
    Memory(const LayerBackward& self, int64_t rows)
        : d(rows * self.row), kept(self.recomputes ? rows * self.kept_row : 0) {}
  };

  // Steps a slab of n samples: rows enough to be worth their overhead, few enough for the
  // second-level cache.
  int64_t slab_steps(int64_t n) const {
    constexpr int64_t kBytes = 128 << 10, kRows = 256;
    const int64_t bytes = (row + (recomputes ? kept_row : 0)) * sizeof(T);
    return min(layer.steps, max(int64_t(1), max(kRows, kBytes / bytes) / n));
  }

  Slab<T> slab(int64_t hi, int64_t steps, int64_t b, int64_t n, const Memory& memory) const {
    const int64_t lo = max(int64_t(0), hi - steps);
    const Rows<T> d{memory.d.data, row};
    if (recomputes) return {{lo, hi, b, n, d, n}, {memory.kept.data, kept_row}, n};
    return {{lo, hi, b, n, d, n}, {layer.kept(lo + 1, b).data, kept_row}, B};
  }

  Chain chain(const Slab<T>& slab, T* carry) const {
    return Chain(layer, request, weights, slab, carry);
  }

  // What the forward did not keep of one step, computed again from the state that it put out. Steps
  // depend on nothing but those, so they run in any order.
  struct Recompute {
    const LayerBackward& self;
    Buffer<T> memory, nothing;

    explicit Recompute(const LayerBackward& self)
        : self(self),
          memory(self.recomputes
                     ? self.B * (2 * self.layer.padded + self.forward_weights.input_width())
                     : 0),
          nothing(self.recomputes ? self.layer.padded_P + self.layer.padded : 0) {
      if (self.recomputes)
        std::memset(nothing.data, 0, (self.layer.padded_P + self.layer.padded) * sizeof(T));
    }

    void operator()(const Slab<T>& slab, const Memory& to, int64_t t) {
      const Layer<T>& layer = self.layer;
      const int64_t width = self.forward_weights.input_width(), padded = layer.padded;
      ForwardStep<T> step{};
      step.n = slab.n;
      step.out = {memory.data, padded};
      step.c_next = {memory.data + slab.n * padded, padded};
      if (self.forward_weights.input_apart()) {
        T* from_x = memory.data + 2 * slab.n * padded;
        self.forward_weights.input()(slab.n, layer.x(t, slab.b).data, layer.request.x_stride[1],
                                     nullptr, 0, 0, from_x, width);
        step.x_part = {from_x, width};
      } else {
        step.x = layer.x(t, slab.b);
      }
      step.h = t > 1 || layer.request.h0 ? layer.h(t - 1, slab.b) : ConstRows<T>{nothing.data, 0};
      step.before = {nothing.data, 0};  // the state after the step is not wanted
      const int64_t first = (t - 1 - slab.lo) * slab.kept_rows;
      step.gates = {to.kept.data + first * self.kept_row, self.kept_row};
      forward_step<Cell>(*self.forward_weights, step);
      // The backward reads c_t where a projection hides tanh(c_t).
      if constexpr (Cell::kStates == 2)
        for (int64_t r = 0; r < slab.n; ++r)
          copy_units(padded, layer.kept_c(t, slab.b)[r], step.gates[r] + Cell::kSlots * padded);
    }
  };

  void run(const Plan& plan) {
    const SampleGroups groups(B, parallel.threads);
    if (B == 0) return gradients.finish();
    if (plan.algorithm != Algorithm::linear)
      all_at_once(plan);
    else if (groups.count >= parallel.threads)
      group_by_group(groups);
    else
      in_a_pipeline(groups);
    gradients.finish();
  }

 private:
  void all_at_once(const Plan& plan) {
    const Memory memory(*this, layer.steps * B);
    Buffer<T> carry(B * state);
    const Slab<T> whole = slab(layer.steps, layer.steps, 0, B, memory);
    Chain::enter(layer, request, 0, B, carry.data);
    if (recomputes)
      for_each_index(
          parallel, layer.steps, [&] { return Recompute(*this); },
          [&](int64_t i, Recompute& recompute) { recompute(whole, memory, i + 1); });
    scan(chain(whole, carry.data), plan, parallel);
    for_each_index(parallel, parallel.threads,
                   [&](int64_t i) { gradients.add_share(0, i, parallel.threads, whole); });
    Chain::leave(layer, request, 0, B, carry.data);
  }

  // Each worker takes whole groups of samples.
  void group_by_group(const SampleGroups& groups) {
    const int64_t workers = parallel.threads;
    for_each_index(parallel, workers, [&](int64_t worker) {
      const int64_t first = groups.count * worker / workers;
      const int64_t end = groups.count * (worker + 1) / workers;
      for (int64_t i = first; i < end; ++i) {
        const int64_t b = groups.begin(i), n = groups.size(i), steps = slab_steps(n);
        const Memory memory(*this, steps * n);
        Walk walk(*this, b, n);
        Recompute recompute(*this);
        for (int64_t hi = layer.steps; hi > 0; hi -= min(steps, hi)) {
          const Slab<T> now = slab(hi, steps, b, n, memory);
          if (recomputes)
            for (int64_t t = now.lo + 1; t <= now.hi; ++t) recompute(now, memory, t);
          walk(now);
          gradients.add(worker, now);
        }
        walk.leave();
      }
    });
  }

  // Some threads scan slab i, the others do what comes after slab i - 1 and before slab i + 1.
  // Those two share their memory: of slab i - 1 only d is read by then, of slab i + 1 only what a
  // forward keeps is written.
  void in_a_pipeline(const SampleGroups& groups) {
    const int64_t workers = parallel.threads, helpers = workers - groups.count;
    const int64_t steps = slab_steps(B), slabs = ceil_div(layer.steps, steps);
    const Memory memories[2] = {Memory(*this, steps * B), Memory(*this, steps * B)};
    Buffer<T> carry(B * state);
    const auto number = [&](int64_t i) {
      Slab<T> of_all = slab(layer.steps - i * steps, steps, 0, B, memories[i % 2]);
      of_all.read_by_other_core = true;
      return of_all;
    };
    Chain::enter(layer, request, 0, B, carry.data);
    const auto prepare = [&](int64_t i, int64_t share, int64_t shares) {
      if (!recomputes || i >= slabs) return;
      const Slab<T> next = number(i);
      Recompute recompute(*this);
      const int64_t n = next.steps();
      for (int64_t k = n * share / shares; k < n * (share + 1) / shares; ++k)
        recompute(next, memories[i % 2], next.lo + 1 + k);
    };
    for_each_index(parallel, workers, [&](int64_t w) { prepare(0, w, workers); });
    for (int64_t i = 0; i < slabs; ++i)
      for_each_index(parallel, workers, [&](int64_t w) {
        if (w < groups.count) {
          linear_walk(number(i), groups.begin(w), groups.size(w), carry.data);
        } else {
          const int64_t share = w - groups.count;
          if (i > 0) gradients.add_share(groups.count, share, helpers, number(i - 1));
          prepare(i + 1, share, helpers);
        }
      });
    for_each_index(parallel, workers,
                   [&](int64_t w) { gradients.add_share(0, w, workers, number(slabs - 1)); });
    Chain::leave(layer, request, 0, B, carry.data);
  }

  // The gradients of samples [b, b + n) on their way through the slabs.
  struct Walk {
    const LayerBackward& self;
    const int64_t b, n;
    Buffer<T> memory;

    Walk(const LayerBackward& self, int64_t b, int64_t n)
        : self(self), b(b), n(n), memory(n * self.state) {
      Chain::enter(self.layer, self.request, b, n, memory.data);
    }
    void leave() const { Chain::leave(self.layer, self.request, b, n, memory.data); }
    void operator()(const Slab<T>& slab) const { self.linear_walk(slab, 0, n, memory.data); }
  };

  // Samples [b, b + n) of the slab; carry holds the gradients of all of its samples.
  void linear_walk(const Slab<T>& slab, int64_t b, int64_t n, T* carry) const {
    const Chain steps = chain(slab, carry);
    Walker<Chain> walker(steps, n);
    steps.last(b, n, walker.g);
    walker.template walk<true>(steps, steps.steps(), 0, b, n);
    steps.first(b, n, walker.g);
  }
};

template <class Cell>
void layer_backward(const RecurrentBackwardRequest& request, const Plan& plan,
                    const Parallel& parallel) {
  LayerBackward<Cell>(request, parallel).run(plan);
}

}  // namespace bppsa::BPPSA_ISA
