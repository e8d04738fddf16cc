// The Jacobian of all steps of a layer: what each unit of the last state hands to the first one.
//
// The map of the chain without direct gradients, composed step by step, newest first: its rows are
// gradients that enter at one unit each, and walk side by side. Samples are composed in parallel.
// Where a recurrence forgets, nothing is left of them after some hundred steps, and that is all.
#pragma once

#include "backward.h"

namespace bppsa::BPPSA_ISA {

template <class Cell>
class LayerJacobian {
 public:
  using T = typename Cell::T;

  LayerJacobian(const RecurrentJacobianRequest& request, const Parallel& parallel)
      : request_(request), steps_(request, parallel) {}

  void run() const {
    steps_.for_each_index_with_weights(
        steps_.B, [&](int64_t b, const Weights& weights) { compose(b, weights); });
  }

 private:
  using Weights = typename LayerBackward<Cell>::Weights;

  // The place of a unit of the state, without padding, in a row of the chain's state.
  int64_t place(int64_t unit) const {
    const Layer<T>& layer = steps_.layer;
    return unit < layer.P ? unit : layer.padded_P + unit - layer.P;
  }

  void compose(int64_t b, const Weights& weights) const {
    using Memory = typename LayerBackward<Cell>::Memory;
    const Layer<T>& layer = steps_.layer;
    const int64_t rows = layer.P + (Cell::kStates == 2 ? layer.H : 0), width = steps_.state;
    const int64_t length = steps_.slab_steps(1);
    const Memory memory(steps_, length);
    typename LayerBackward<Cell>::Recompute recompute(steps_, weights);
    Buffer<T> maps(2 * rows * width), scratch(rows * (steps_.row + layer.padded));
    T *from = maps.data, *to = from + rows * width;
    std::memset(from, 0, rows * width * sizeof(T));
    for (int64_t i = 0; i < rows; ++i) from[i * width + place(i)] = 1;
    for (int64_t hi = layer.steps; hi > 0 && !all_zero(from, rows * width); hi -= min(length, hi)) {
      const Slab<T> slab = steps_.slab(hi, length, b, 1, memory);
      if (steps_.recomputes())
        for (int64_t t = slab.lo + 1; t <= slab.hi; ++t) recompute(slab, memory, t);
      const LayerChain<Cell> chain = steps_.chain(weights, slab, nullptr);
      for (int64_t t = slab.steps(); t > 0; --t) {
        chain.compose(t, 0, rows, from, to, scratch.data);
        T* swap = from;
        from = to;
        to = swap;
      }
    }
    T* out = static_cast<T*>(request_.jacobian) + b * rows * rows;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < rows; ++j) out[i * rows + j] = from[i * width + place(j)];
  }

  const RecurrentJacobianRequest& request_;
  const LayerBackward<Cell> steps_;
};

template <class Cell>
void layer_jacobian(const RecurrentJacobianRequest& request, const Parallel& parallel) {
  LayerJacobian<Cell>(request, parallel).run();
}

}  // namespace bppsa::BPPSA_ISA
