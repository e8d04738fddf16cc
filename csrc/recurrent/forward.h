// The forward of a recurrent layer: all steps of a group of samples in one go, the state never
// leaving the caches, groups on threads.
#pragma once

#include "weights.h"

namespace bppsa::BPPSA_ISA {

// What the steps of a group take from their inputs.
template <class Cell, typename T = typename Cell::T>
class InputPart {
 public:
  InputPart(const Layer<T>& layer, const PackedWeights<Cell>& weights, int64_t b, int64_t n)
      : layer_(layer),
        input_(weights.input()),
        b_(b),
        n_(n),
        width_(Cell::kGates * layer.H),
        steps_(weights.input_apart() ? min(kSteps, layer.steps) : 0),
        memory_(n * steps_ * width_) {}

  // For step t; t ascends from 1.
  void of_step(int64_t t, ForwardStep<T>& step) {
    if (!steps_) {
      step.x = layer_.x(t, b_);
      return;
    }
    const int64_t i = (t - 1) % steps_;
    if (i == 0) apply(t);
    step.x_part = {memory_.data + i * width_, steps_ * width_};
  }

 private:
  static constexpr int64_t kSteps = 32;

  // From step t on, sample by sample.
  void apply(int64_t t) {
    const int64_t steps = min(steps_, layer_.steps - t + 1);
    for (int64_t r = 0; r < n_; ++r)
      input_(steps, layer_.x(t, b_ + r).data, layer_.args.x_stride[0], nullptr, 0,
             memory_.data + r * steps_ * width_, width_);
  }

  const Layer<T>& layer_;
  const Multiplier<T>& input_;
  const int64_t b_, n_, width_, steps_;
  Buffer<T> memory_;
};

template <class Cell, int W, typename T = typename Cell::T>
void forward_group(const Layer<T>& layer, const PackedWeights<Cell>& weights, T* c_n, int64_t b,
                   int64_t n) {
  const int64_t H = layer.H, P = layer.P;
  const bool keeps_all = layer.args.kept_width == Cell::kept_width(H);
  const bool own_c = Cell::kCarriesCell && !layer.args.kept_width;
  InputPart<Cell> input(layer, weights, b, n);
  Buffer<T> cells(own_c ? 2 * n * H : 0);
  Buffer<T> unprojected(layer.w_hr ? n * H : 0);
  Buffer<T> scratch(n * Cell::kGates * H);
  ForwardStep<T> step{};
  step.n = n;
  step.scratch = scratch.data;
  step.c = layer.c(0, b);
  for (int64_t t = 1; t <= layer.steps; ++t) {
    input.of_step(t, step);
    step.h = layer.h(t - 1, b);
    step.out = layer.w_hr ? Rows<T>{unprojected.data, H} : layer.output(t, b);
    if (keeps_all) step.kept = layer.kept(t, b);
    if constexpr (Cell::kCarriesCell)
      step.c_next = own_c ? Rows<T>{cells.data + (t % 2) * n * H, H} : layer.kept_c(t, b);
    Cell::template forward<W>(*weights, step);
    if (layer.w_hr)
      weights.projection()(n, step.out.data, H, nullptr, 0, layer.output(t, b).data, P);
    step.c = {step.c_next.data, step.c_next.ld};
  }
  if constexpr (Cell::kCarriesCell)
    for (int64_t r = 0; r < n; ++r) std::memcpy(c_n + (b + r) * H, step.c[r], H * sizeof(T));
}

template <class Cell, typename T = typename Cell::T>
void layer_forward(const RecurrentForwardArgs& args, const Parallel& parallel) {
  const Layer<T> layer(args);
  const PackedWeights<Cell> weights(layer);
  const Groups groups(layer.B, parallel.threads);
  with_width<T>(best_width<T>(layer.H), [&](auto width) {
    for_each_index(parallel, groups.count, [&](int64_t i) {
      forward_group<Cell, decltype(width)::value>(layer, weights, static_cast<T*>(args.c_n),
                                                  groups.begin(i), groups.size(i));
    });
  });
}

}  // namespace bppsa::BPPSA_ISA
