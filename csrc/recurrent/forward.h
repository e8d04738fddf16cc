// The forward of a recurrent layer: all steps of a group of samples in one go, groups on threads;
// or, of few samples with large weights, step by step, a part of the units on each thread
// (by_units.h).
//
// A group's state is in memory of its own, padded, beside the rows of the output: what a step reads
// was stored by the step before it in the same pieces, and never lies in a cache line that another
// thread's samples share (nor next to one: the cores fetch ahead).
#pragma once

#include "by_units.h"
#include "ragged.h"
#include "step.h"

namespace bppsa::BPPSA_ISA {

// What the steps of a group take from their inputs.
template <class Cell, typename T = typename Cell::T>
struct InputPart {
  // Inputs a product, at least: so many that W_ih, which may lie far away, is read seldom; unless a
  // layer is very wide, they and their results stay in the second-level cache.
  static constexpr int64_t kRows = 128;

  const Layer<T>& layer;
  const PackedWeightsOf<Cell>& weights;
  const int64_t b, n;  // samples [b, b + n)
  const int64_t width = weights.input_width;
  const int64_t steps = weights.input_apart ? min(ceil_div(kRows, n), layer.steps) : 0;
  const Buffer<T> inputs{layer.w_ih ? n * steps * layer.I : 0}, parts{n * steps * width};

  // For step t of a run, in which t ascends.
  void of_step(int64_t t, const Run& run, ForwardStep<T>& step) const {
    if (!steps) {
      step.x = layer.x(t, b);
      return;
    }
    const int64_t i = (t - run.first) % steps;
    if (i == 0) apply(t, run);
    step.x_part = {parts.data + i * run.n * width, width};
  }

  // From step t on, all samples of a step side by side.
  void apply(int64_t t, const Run& run) const {
    const int64_t I = layer.I, n = run.n, count = min(steps, run.last - t + 1);
    if (!layer.w_ih) {
      for (int64_t i = 0; i < count; ++i)
        weights.input(n, layer.x(t + i, b), {parts.data + i * n * width, width});
      return;
    }
    T* to = inputs.data;
    for (int64_t i = 0; i < count; ++i) {
      const ConstRows<T> x = layer.x(t + i, b);
      for (int64_t r = 0; r < n; ++r, to += I) std::memcpy(to, x[r], I * sizeof(T));
    }
    weights.input(count * n, {inputs.data, I}, {parts.data, width});
  }
};

// The state of n samples, and the one after it: where a step reads what the step before has
// written.
template <typename T>
struct States {
  const int64_t width;  // numbers a sample
  Buffer<T> memory;

  States(const Layer<T>& layer, int64_t n)
      : width(whole_vectors<T>(layer.P)), memory(2 * n * width) {}
  Rows<T> at(int64_t t, int64_t n) const { return {memory.data + t % 2 * n * width, width}; }
};

// n samples' steps, of a layer or of a part of it.
template <class Cell, bool kAlone, typename T = typename Cell::T>
struct GroupForward {
  const RecurrentForwardRequest& request;
  const Layer<T>& layer;
  const PackedWeightsOf<Cell>& weights;
  const States<T>& states;  // of the whole layer
  const int64_t b, samples;
  const InputPart<Cell> input{layer, weights, b, samples};
  const int64_t width = whole_vectors<T>(layer.H);
  const Buffer<T> memory{samples * ((layer.w_hr ? 2 : 1) * width + Cell::kKept * layer.padded)};
  const Rows<T> c{memory.data, width};

  // The first state: the part's own units of it.
  void begin() const {
    const Rows<T> h = states.at(0, samples);
    for (int64_t r = 0; r < samples; ++r) {
      copy_padded(layer.shown, layer.h0.at(b + r, layer.first), h[r] + layer.first);
      if (Cell::kStates == 2) copy_padded(layer.H, layer.c0.at(b + r, layer.first), c[r]);
    }
  }

  // Steps [from, to] of a run. One sample alone is a chain of short steps, of which each test and
  // address would be a good part: kAlone, so that none is left, and all that steps read again and
  // again beside the loop, as stores of vectors may change whatever lies in memory.
  BPPSA_INLINE void steps(int64_t from, int64_t to, const Run& run) const {
    const int64_t n = kAlone ? 1 : run.n, first = layer.first;
    const int64_t samples = kAlone ? 1 : this->samples;
    const int64_t kept_width = request.kept_width;
    const int64_t kept_c = kept_width - layer.all_padded + first;
    const bool keeps_all = Cell::kKept && kept_width == Cell::kKept * layer.all_padded;
    const Rows<T> c = this->c, gates{c[samples], Cell::kKept * layer.padded};
    const Rows<T> unprojected{layer.w_hr ? gates[samples] : nullptr, width};
    const StepRows<T> outputs{static_cast<T*>(request.output) + first, layer.output.step,
                              layer.output.sample};
    const StepRows<T> all_kept{static_cast<T*>(request.kept), layer.kept.step, layer.kept.sample};
    Rows<T> h = states.at(from - 1, samples), h_next = states.at(from, samples);
    ForwardStep<T> step{};
    step.n = n;
    step.c_next = c;
    for (int64_t t = from; t <= to; ++t) {
      input.of_step(t, run, step);
      step.h = {h.data, h.ld};
      step.before =
          Cell::kStates == 2 ? ConstRows<T>{c.data, c.ld} : ConstRows<T>{h[0] + first, h.ld};
      step.out = layer.w_hr ? unprojected : Rows<T>{h_next[0] + first, h_next.ld};
      const Rows<T> kept = kept_width ? all_kept.at(t - 1, b) : Rows<T>{};
      step.gates = keeps_all ? Rows<T>{kept[0] + Cell::kSlots * first, kept.ld} : gates;
      if constexpr (Cell::kStates == 2) step.kept_c = {kept.at(0, kept_c), kept.ld};
      const Rows<T> output = outputs.at(t - 1, b);
      step.output = layer.w_hr ? Rows<T>{} : output;
      // (What keeps no gates is never computed again, and has no function to share.)
      if constexpr (kAlone || Cell::kKept == 0)
        forward_step<Cell>(*weights, step);
      else
        forward_step_of_rows<Cell>(*weights, step);
      if (layer.w_hr) {
        weights.projection(n, {unprojected.data, width}, {}, 0, h_next);
        for (int64_t r = 0; r < n; ++r) copy_units(layer.P, h_next[r], output[r]);
      }
      const Rows<T> swap = h;
      h = h_next;
      h_next = swap;
    }
  }

  // What a run leaves out.
  void skip(const Run& run) const {
    const StepRows<T> outputs{static_cast<T*>(request.output), layer.output.step,
                              layer.output.sample};
    for (int64_t t = run.first; run.n < samples && t <= run.last; ++t)
      for (int64_t r = run.n; r < samples; ++r)
        std::memset(outputs.at(t - 1, b)[r], 0, layer.P * sizeof(T));
  }

  void end() const {
    T* c_n = static_cast<T*>(request.c_n) + layer.first;
    for (int64_t r = 0; Cell::kStates == 2 && r < samples; ++r)
      std::memcpy(c_n + (b + r) * layer.all, c[r], layer.H * sizeof(T));
  }
};

template <class Cell, bool kAlone, typename T = typename Cell::T>
void forward_group(const RecurrentForwardRequest& request, const Layer<T>& layer,
                   const PackedWeightsOf<Cell>& weights, int64_t b, int64_t samples) {
  const States<T> states(layer, samples);
  const GroupForward<Cell, kAlone> group{request, layer, weights, states, b, samples};
  const RaggedGroup ragged{request.lengths, layer.steps, b, samples};
  group.begin();
  for (int64_t t = 1; t <= layer.steps;) {
    const Run run = ragged.from(t);
    if (run.n) group.steps(run.first, run.last, run);
    group.skip(run);
    t = run.last + 1;
  }
  group.end();
}

// What one thread does of a group: some units of all samples.
template <class Cell, bool kAlone, typename T = typename Cell::T>
struct UnitsForward {
  const Layer<T> layer;
  const PackedWeightsOf<Cell> weights{kGatesOfSlots<Cell>, layer};
  const GroupForward<Cell, kAlone> group;

  UnitsForward(const RecurrentForwardRequest& request, const UnitParts<T>& parts, int64_t i,
               const States<T>& states)
      : layer(request, parts.begin(i), parts.size(i)),
        group{request, layer, weights, states, 0, layer.B} {
    group.begin();
  }

  // (Not inlined: beside its weights the call of a step is nothing.)
  __attribute__((noinline)) void step(int64_t t) const {
    group.steps(t, t, {1, layer.steps, layer.B});
    if (t == layer.steps) group.end();
  }
};

template <class Cell, bool kAlone, typename T = typename Cell::T>
void forward_by_units(const RecurrentForwardRequest& request, const Layer<T>& layer,
                      const UnitParts<T>& parts, const Parallel& parallel) {
  using Part = UnitsForward<Cell, kAlone>;
  const States<T> states(layer, layer.B);
  step_by_step<Part>(
      parallel, parts.count, layer.steps,
      [&](int64_t i, std::optional<Part>& place) { place.emplace(request, parts, i, states); },
      [](const Part& part, int64_t t) { part.step(t); });
}

template <class Cell>
void layer_forward(const RecurrentForwardRequest& request, const Parallel& parallel) {
  using T = typename Cell::T;
  const Layer<T> layer(request);
  if constexpr (!kSeesC<Cell>) {
    const auto parts = UnitParts<T>::template of<Cell>(layer, parallel.threads);
    if (parts.count > 1 && !request.lengths)
      return (layer.B == 1 ? forward_by_units<Cell, true>
                           : forward_by_units<Cell, false>)(request, layer, parts, parallel);
  }
  const SampleGroups groups = RaggedGroup::groups(request, parallel.threads);
  using Weights = PackedWeightsOf<Cell>;
  for_each_index_reading(
      parallel, groups.count, Weights::bytes(layer),
      [&](bool needed) { return Weights(kGatesOfSlots<Cell>, layer, needed); },
      [&](int64_t i, const Weights& weights) {
        const auto forward =
            groups.size(i) == 1 ? forward_group<Cell, true> : forward_group<Cell, false>;
        forward(request, layer, weights, groups.begin(i), groups.size(i));
      });
}

}  // namespace bppsa::BPPSA_ISA
