// The forward of a recurrent layer: all steps of a group of samples in one go, groups on threads.
//
// A group's state is in memory of its own, padded, beside the rows of the output: what a step reads
// was stored by the step before it in the same pieces, and never lies in a cache line that another
// thread's samples share (nor next to one: the cores fetch ahead).
#pragma once

#include "../simd/parallel.h"
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

  // For step t; t ascends from 1.
  void of_step(int64_t t, ForwardStep<T>& step) const {
    if (!steps) {
      step.x = layer.x(t, b);
      return;
    }
    const int64_t i = (t - 1) % steps;
    if (i == 0) apply(t);
    step.x_part = {parts.data + i * n * width, width};
  }

  // From step t on, all samples of a step side by side.
  void apply(int64_t t) const {
    const int64_t I = layer.I, count = min(steps, layer.steps - t + 1);
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

// One sample alone is a chain of short steps, of which each test and address would be a good part:
// kAlone, so that none is left.
template <class Cell, bool kAlone, typename T = typename Cell::T>
void forward_group(const RecurrentForwardRequest& request, const Layer<T>& layer,
                   const PackedWeightsOf<Cell>& weights, int64_t b, int64_t samples) {
  const int64_t n = kAlone ? 1 : samples;
  const int64_t H = layer.H, P = layer.P;
  const int64_t width = whole_vectors<T>(H), output_width = whole_vectors<T>(P);
  const bool keeps_all = Cell::kKept && request.kept_width == Cell::kKept * layer.padded;
  const InputPart<Cell> input{layer, weights, b, n};
  Buffer<T> memory(n * (3 * width + 2 * output_width + Cell::kKept * layer.padded));
  T* next = memory.data;
  const auto rows = [&](int64_t ld) {
    const Rows<T> taken{next, ld};
    next += n * ld;
    return taken;
  };
  Rows<T> h = rows(output_width), h_next = rows(output_width);
  const Rows<T> c = rows(width), unprojected = rows(layer.w_hr ? width : 0);
  const Rows<T> gates = rows(Cell::kKept * layer.padded);
  for (int64_t r = 0; r < n; ++r) {
    copy_padded(P, layer.h0.at(b + r, 0), h[r]);
    if (Cell::kStates == 2) copy_padded(H, layer.c0.at(b + r, 0), c[r]);
  }

  const StepRows<T> outputs{static_cast<T*>(request.output), layer.output.step,
                            layer.output.sample};
  const int64_t kept_width = request.kept_width;
  const StepRows<T> all_kept{static_cast<T*>(request.kept), layer.kept.step, layer.kept.sample};
  ForwardStep<T> step{};
  step.n = n;
  step.c_next = c;
  for (int64_t t = 1; t <= layer.steps; ++t) {
    input.of_step(t, step);
    step.h = {h.data, h.ld};
    step.before = Cell::kStates == 2 ? ConstRows<T>{c.data, c.ld} : step.h;
    step.out = layer.w_hr ? unprojected : h_next;
    const Rows<T> kept = kept_width ? all_kept.at(t - 1, b) : Rows<T>{};
    step.gates = keeps_all ? kept : gates;
    if constexpr (Cell::kStates == 2)
      step.kept_c = {kept.at(0, kept_width - layer.padded), kept.ld};
    const Rows<T> output = outputs.at(t - 1, b);
    step.output = layer.w_hr ? Rows<T>{} : output;
    // (What keeps no gates is never computed again, and has no function to share.)
    if constexpr (kAlone || Cell::kKept == 0)
      forward_step<Cell>(*weights, step);
    else
      forward_step_of_rows<Cell>(*weights, step);
    if (layer.w_hr) {
      weights.projection(n, {unprojected.data, width}, {}, 0, h_next);
      for (int64_t r = 0; r < n; ++r) copy_units(P, h_next[r], output[r]);
    }
    const Rows<T> swap = h;
    h = h_next;
    h_next = swap;
  }
  if constexpr (Cell::kStates == 2)
    for (int64_t r = 0; r < n; ++r)
      std::memcpy(static_cast<T*>(request.c_n) + (b + r) * H, c[r], H * sizeof(T));
}

template <class Cell>
void layer_forward(const RecurrentForwardRequest& request, const Parallel& parallel) {
  using T = typename Cell::T;
  const Layer<T> layer(request);
  const SampleGroups groups(layer.B, parallel.threads);
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
