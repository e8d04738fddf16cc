// The backward of a recurrent layer: the scan over its transposed Jacobians, then the products
// that give the gradients of parameters and inputs.
//
// The linear scan goes through the chain slab by slab of steps, newest first, so that the
// gradients of the pre-activations are still in the caches when the products read them, and never
// take the memory of all T steps. The parallel scans need the whole chain at once.
#pragma once

#include "../scan/scan.h"
#include "parameters.h"

namespace bppsa::BPPSA_ISA {

// What the forward did not keep, computed again for steps (lo, hi] from the states it put out.
// Steps depend on nothing but those, so they run in parallel.
template <class Cell, typename T = typename Cell::T>
void recompute(const Layer<T>& layer, const PackedWeights<Cell>& weights, int64_t lo, int64_t hi,
               Rows<T> kept, const Parallel& parallel) {
  const int64_t B = layer.B, H = layer.H, GH = Cell::kGates * H;
  with_width<T>(best_width<T>(H), [&](auto width) {
    for_each_index(
        parallel, hi - lo, [&] { return Buffer<T>(B * (H + 2 * GH)); },
        [&](int64_t i, Buffer<T>& spare) {
          const int64_t t = lo + 1 + i;
          ForwardStep<T> step{};
          step.n = B;
          if (weights.input_apart()) {
            weights.input()(B, layer.x(t, 0).data, layer.args.x_stride[1], nullptr, 0,
                            spare.data + B * H, GH);
            step.x_part = {spare.data + B * H, GH};
          } else {
            step.x = layer.x(t, 0);
          }
          step.h = layer.h(t - 1, 0);
          step.kept = kept.from(i * B);
          step.out = {spare.data, H};
          step.scratch = spare.data + B * (H + GH);
          if constexpr (Cell::kCarriesCell) {
            step.c = layer.c(t - 1, 0);
            step.c_next = {step.kept.data + 4 * H, step.kept.ld};
          }
          Cell::template forward<decltype(width)::value>(*weights, step);
        });
  });
}

// Steps a slab: rows enough to be worth a parallel loop, few enough for the caches.
template <typename T>
int64_t slab_steps(int64_t steps, int64_t B, int64_t row, int workers) {
  constexpr int64_t kBytes = 1 << 20, kRows = 256;
  const int64_t rows = workers * max(kRows, kBytes / int64_t(row * sizeof(T)));
  return min(steps, max(int64_t(1), rows / max(int64_t(1), B)));
}

// From so many rows on, W_hh is rearranged for the products with it.
constexpr int64_t kWorthPanels = 8;

template <class Cell, typename T = typename Cell::T>
void layer_backward(const RecurrentBackwardArgs& args, const Plan& plan, const Parallel& parallel) {
  using Chain = LayerChain<Cell>;
  const Layer<T> layer(args);
  const int64_t B = layer.B, H = layer.H, P = layer.P, steps = layer.steps;
  const int64_t state = Chain::state(layer), all_kept = Cell::kept_width(H);
  const bool again = args.kept_width != all_kept;
  const int64_t row = Parameters<Cell>::row_width(layer);
  const int64_t slab = plan.algorithm == Algorithm::linear
                           ? slab_steps<T>(steps, B, row + (again ? all_kept : 0), parallel.threads)
                           : steps;
  Buffer<T> d(slab * B * row);
  Buffer<T> kept(again ? slab * B * all_kept : 0);
  Buffer<T> carry(B * state);
  Parameters<Cell> parameters(layer, args, parallel.threads);
  const PackedWeights<Cell> weights(layer, again);
  const Multiplier<T> w_hh(Cell::kGates * H, P, layer.w_hh, P, 1, steps * B >= kWorthPanels);

  const ConstRows<T> u = Chain::direct(args, steps, 0);
  const T* last_h = static_cast<const T*>(args.grad_hn);
  const T* last_c = static_cast<const T*>(args.grad_cn);
  for (int64_t b = 0; b < B; ++b) {
    T* g = carry.data + b * state;
    for (int64_t p = 0; p < P; ++p)
      g[p] = (u ? u[b][p] : T(0)) + (last_h ? last_h[b * P + p] : T(0));
    for (int64_t h = 0; h < state - P; ++h) g[P + h] = last_c ? last_c[b * H + h] : T(0);
  }

  for (int64_t hi = steps; hi > 0; hi -= min(slab, hi)) {
    const int64_t lo = max(int64_t(0), hi - slab);
    ConstRows<T> kept_rows{layer.kept(lo + 1, 0).data, all_kept};
    if (again) {
      recompute<Cell>(layer, weights, lo, hi, Rows<T>{kept.data, all_kept}, parallel);
      kept_rows = {kept.data, all_kept};
    }
    scan(Chain(layer, args, w_hh, lo, hi, {d.data, row}, kept_rows, carry.data), plan, parallel);
    parameters.add(lo, hi, {d.data, row}, parallel);
  }
  parameters.finish();
  for (int64_t b = 0; b < B; ++b) {
    const T* g = carry.data + b * state;
    if (args.grad_h0) std::memcpy(static_cast<T*>(args.grad_h0) + b * P, g, P * sizeof(T));
    if (args.grad_c0) std::memcpy(static_cast<T*>(args.grad_c0) + b * H, g + P, H * sizeof(T));
  }
}

}  // namespace bppsa::BPPSA_ISA
