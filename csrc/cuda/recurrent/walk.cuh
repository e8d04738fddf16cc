#pragma once
// The backward walk: steps last-1 … first of one sample, one after the other, by one block.
//
//   g_i     the gradient of the state after step i, with everything that reaches it directly
//   g_{i-1} = w_hhᵀ p_i + past_i + u_{i-1},   (p_i, past_i) = pull(g_i)
//
// g stays in the registers of the threads that own its units; what they exchange is p, in shared
// memory, two panes of it in turn, so that one barrier a step is enough. What a step needs from
// memory is independent of g and fetched kAhead steps before.

#include "cell.cuh"
#include "views.cuh"
#include "weights.cuh"

namespace bppsa::cuda {

// What each step needs from memory, fetched from the end of the chain to its beginning. Pointers
// move, so that an address costs an addition.
template <class Cell>
struct Feed {
  using Real = typename Cell::scalar_t;
  struct Item {
    typename Cell::Raw raw;
    Real direct;  // u_{i-1}
  };

  int64_t i, row_step, direct_step;
  Tape<Real> tape;  // at step i, sample b, unit 0
  bool has_direct;
  const Real* direct;  // u_{i-1} there

  BPPSA_DEVICE Feed(const BackwardView<Real>& view, int64_t b, int64_t last)
      : i(last - 1),
        row_step(view.row_step()),
        direct_step(view.reverse ? -view.grad_step : view.grad_step),
        tape(view.tape.from(view.row(i, b), b * view.H)),
        has_direct(view.grad_output != nullptr),
        direct(view.grad_output + view.time(i) * view.grad_step + b * view.grad_sample -
               direct_step) {}

  /// inside: this is known not to be the first step of the chain.
  BPPSA_DEVICE Item fetch(bool inside, int unit) const {
    const bool start = !inside && i == 0;
    Item item{Cell::read(tape, unit, start, unit - row_step), Real(0)};
    if (has_direct && !start) item.direct = direct[unit];
    return item;
  }
  BPPSA_DEVICE void step_back() {
    --i;
    tape.template move<Cell::kKeeps, Cell::kHasC>(-row_step);
    direct -= direct_step;
  }
};

/// Walks steps last-1 … first of sample b from g (of this thread's units, in registers) to the g
/// before step `first`, and writes the gate gradients if it publishes. `panes` is shared memory for
/// 2 * kGates vectors, their padding zero. All threads of the block must call it; it ends with a
/// barrier.
template <class Cell, class Shape>
BPPSA_DEVICE void walk_back(const BackwardView<typename Cell::scalar_t>& view,
                            const Weights<typename Cell::scalar_t, Cell::kGates, Shape>& weights,
                            int64_t b, int64_t last, int64_t first,
                            typename Cell::scalar_t (&g)[Shape::kPasses][Cell::kStates],
                            typename Cell::scalar_t* panes, bool publishes) {
  using Real = typename Cell::scalar_t;
  constexpr int G = Cell::kGates, kAhead = Shape::kAhead, kPasses = Shape::kPasses;
  const int H = view.H, pitch = padded<Real, Shape>(H);
  const int passes = kPasses == 1 ? 1 : ceil_div(H, static_cast<int>(blockDim.x) / Shape::kSplit);
  // A thread without a unit shadows the last one, and writes nothing.
  const auto unit = [&](int p) { return smaller(unit_of<Shape>(p), H - 1); };

  Feed<Cell> feed(view, b, last);
  typename Feed<Cell>::Item ring[kAhead][kPasses];
  const auto fetch = [&](bool inside, typename Feed<Cell>::Item(&slot)[kPasses]) {
    if (inside || feed.i >= first) {
#pragma unroll 1
      for (int p = 0; p < kPasses; ++p) {
        if (p < passes) slot[p] = feed.fetch(inside, unit(p));
      }
    }
    feed.step_back();
  };
#pragma unroll
  for (int slot = 0; slot < kAhead; ++slot) fetch(false, ring[slot]);
  sync_units<Shape>();  // the rows of a step may take the place of its gates

  Real* row = view.rows + view.row(last - 1, b) * Cell::kRows;
  const int64_t row_back = -feed.row_step * Cell::kRows;
  const auto step = [&](bool inside, int slot) {
    Real* const pane = panes + slot % 2 * (G * pitch);
    Real past[kPasses][Cell::kStates], direct[kPasses];
#pragma unroll 1
    for (int p = 0; p < kPasses; ++p) {
      if (p >= passes) break;
      const auto factors = Cell::factors(ring[slot][p].raw);
      Real d[Cell::kRows];
      Cell::pull(factors, g[p], d, past[p]);
      direct[p] = ring[slot][p].direct;
      if (unit_of<Shape>(p) < H) {
#pragma unroll
        for (int k = 0; k < G; ++k) {
          share_unit<Shape>(pane + k * pitch + unit(p), d[Cell::kFirstRecurrentRow + k]);
        }
        if (publishes && writes_unit<Shape>()) {
          Real published[Cell::kRows];  // not d: nvcc would spill more of an LSTM's numbers
          for (int k = 0; k < Cell::kRows; ++k) published[k] = d[k];
#pragma unroll
          for (int k = 0; k < Cell::kRows; ++k) row[k * H + unit(p)] = published[k];
        }
      }
    }
    row += row_back;
    sync_units<Shape>();
    fetch(inside, ring[slot]);
#pragma unroll 1
    for (int p = 0; p < kPasses; ++p) {
      if (p >= passes) break;
      g[p][0] = weights.all(pane, pitch, unit(p)) + (past[p][0] + direct[p]);
      if constexpr (Cell::kStates == 2) g[p][1] = past[p][1];
    }
  };
  // The step before the first one, too, is not to be fetched untested: it could be before the
  // chain.
  in_rounds<Shape>(static_cast<int>(last - first), 2 * kAhead + 1, step);
  sync_units<Shape>();
}

}  // namespace bppsa::cuda
