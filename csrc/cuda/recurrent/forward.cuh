#pragma once
// The forward: one block walks the whole sequence of one sample, or one of its windows, the
// recurrent matrix in its registers, h in shared memory, one barrier a step.
//
// Invariant: before step i, `now` holds h_{i-1} and all threads know it; step i writes `next`,
// which nobody reads before the barrier that ends the step. Both are padded with zeros.
//
// The input's part comes from memory several steps ahead: for one input number (kScalarInput) it is
// x itself, and the product with w_ih is made here; otherwise it is the product, (T, B, G * H),
// that a GEMM made of all steps at once.

#include "cell.cuh"
#include "views.cuh"
#include "weights.cuh"

namespace bppsa::cuda {

template <class Cell, bool kScalarInput>
struct InputSide {
  using Real = typename Cell::scalar_t;
  static constexpr int G = Cell::kGates;
  static constexpr int kNumbers = kScalarInput ? 1 : G;
  struct Raw {
    Real e[kNumbers];
  };

  Real weight[G], bias[G], recurrent_bias[G];  // the last one the peepholes, of a cell with them

  BPPSA_DEVICE void load(const ForwardView<Real>& view, int unit) {
#pragma unroll
    for (int g = 0; g < G; ++g) {
      const int row = g * view.H + unit;
      weight[g] = kScalarInput ? view.w_ih[row] : Real(1);
      bias[g] = view.b_ih ? view.b_ih[row] : Real(0);
      recurrent_bias[g] = view.b_hh ? view.b_hh[row] : Real(0);
      if (Cell::input_adds_to_sum(g) && !Cell::kPeeps) bias[g] += recurrent_bias[g];
    }
  }
  BPPSA_DEVICE static Raw fetch(const Real* at, int H, int unit) {
    Raw raw;
#pragma unroll
    for (int n = 0; n < kNumbers; ++n) raw.e[n] = kScalarInput ? at[0] : at[n * H + unit];
    return raw;
  }
  /// What the recurrent sums start from, and the input's part where it is kept apart.
  BPPSA_DEVICE void start(const Raw& raw, Real (&sum)[G], Real (&input)[G]) const {
#pragma unroll
    for (int g = 0; g < G; ++g) {
      input[g] = weight[g] * raw.e[kScalarInput ? 0 : g] + bias[g];
      sum[g] = Cell::input_adds_to_sum(g) ? input[g] : recurrent_bias[g];
    }
  }
};

template <class Cell, class Shape, bool kScalarInput>
__global__ void __launch_bounds__(Shape::kThreads)
    recurrent_forward_kernel(ForwardView<typename Cell::scalar_t> view, int staged) {
  if constexpr (Shape::kBlocks > 1 && !kHasClusters) return;  // the launcher never comes here
  using Real = typename Cell::scalar_t;
  constexpr int G = Cell::kGates, kAhead = Shape::kAhead, kPasses = Shape::kPasses;
  using Side = InputSide<Cell, kScalarInput>;
  const int H = view.H, pitch = padded<Real, Shape>(H);
  const int passes = kPasses == 1 ? 1 : ceil_div(H, static_cast<int>(blockDim.x) / Shape::kSplit);
  Real* const shared = reinterpret_cast<Real*>(shared_memory());
  const Weights<Real, G, Shape> weights(view.w_hh, H, false,
                                        reinterpret_cast<Pack<Real>*>(shared + 2 * pitch), staged);

  int unit[kPasses];  // a thread without a unit shadows the last one, and writes nothing
  bool exists[kPasses];
  Side side[kPasses];
#pragma unroll 1
  for (int p = 0; p < kPasses; ++p) {
    exists[p] = unit_of<Shape>(p) < H;
    unit[p] = smaller(unit_of<Shape>(p), H - 1);
    if (p < passes) side[p].load(view, unit[p]);
  }

  // A task is a window of a sample, which may warm up first: a walk as any other.
  const int64_t tasks = view.windows.n * view.B, turn = gridDim.x / Shape::kBlocks;
  for (int64_t task = blockIdx.x / Shape::kBlocks; task < tasks; task += turn) {
    bool warms = view.windows.warm > 0 && task >= view.B;
#pragma unroll 1
    for (int walks = warms ? 2 : 1; walks > 0; --walks, warms = false) {
      const ForwardWalk<Real> walk = view.walk(task, warms);
      for (int k = threadIdx.x; k < pitch; k += blockDim.x) {
        shared[k] = k < H && walk.h0 ? walk.h0[k] : Real(0);
        shared[pitch + k] = 0;
      }
      UnitState<Real> state[kPasses];
#pragma unroll 1
      for (int p = 0; p < kPasses; ++p) {
        state[p] = {walk.h0 ? walk.h0[unit[p]] : Real(0),
                    Cell::kStates == 2 && walk.c0 ? walk.c0[unit[p]] : Real(0)};
      }
      const Real* input = walk.input;
      Real* output = walk.output;
      Quad<Real>* gates = walk.gates;
      Real* c = walk.c;
      int ahead = static_cast<int>(walk.steps);  // steps not yet fetched
      typename Side::Raw ring[kAhead][kPasses];
      const auto fetch = [&](bool inside, typename Side::Raw(&slot)[kPasses]) {
        if (inside || ahead > 0) {
#pragma unroll 1
          for (int p = 0; p < passes; ++p) slot[p] = Side::fetch(input, H, unit[p]);
        }
        input += walk.input_step;
        --ahead;
      };
#pragma unroll
      for (int slot = 0; slot < kAhead; ++slot) fetch(false, ring[slot]);
      sync_units<Shape>();

      const auto step = [&](bool inside, int slot) {
        const Real* const now = shared + slot % 2 * pitch;
        Real* const next = shared + (slot + 1) % 2 * pitch;
        typename Side::Raw raw[kPasses];
#pragma unroll 1
        for (int p = 0; p < passes; ++p) raw[p] = ring[slot][p];
        fetch(inside, ring[slot]);
#pragma unroll 1
        for (int p = 0; p < kPasses; ++p) {
          if (p >= passes) break;
          Real sum[G], own_input[G];
          side[p].start(raw[p], sum, own_input);
          weights.each(now, unit[p], sum);
          Quad<Real> kept;
          state[p] = Cell::step(sum, own_input, state[p], kept, side[p].recurrent_bias);
          if (exists[p]) share_unit<Shape>(next + unit[p], state[p].h);
          if (exists[p] && writes_unit<Shape>()) {
            output[unit[p]] = state[p].h;
            if (Cell::kKeeps && gates) gates[unit[p]] = kept;
            if (Cell::kStates == 2 && c) c[unit[p]] = state[p].c;
          }
        }
        output += walk.row_step;
        if (Cell::kKeeps && gates) gates += walk.row_step;
        if (Cell::kStates == 2 && c) c += walk.row_step;
        sync_units<Shape>();
      };
      in_rounds<Shape>(static_cast<int>(walk.steps), 2 * kAhead, step);
#pragma unroll 1
      for (int p = 0; p < kPasses; ++p) {
        if (p >= passes || !exists[p] || !writes_unit<Shape>()) continue;
        walk.h_n[unit[p]] = state[p].h;
        if (Cell::kStates == 2) walk.c_n[unit[p]] = state[p].c;
      }
      // The next walk reuses the shared memory, and may begin with what this one ended with.
      sync_units<Shape>();
    }
  }
}

template <class Cell, class Shape, bool kScalarInput>
void walk_forward_in(const ForwardView<typename Cell::scalar_t>& view, Launcher& launch) {
  using Real = typename Cell::scalar_t;
  if constexpr (kUsed<Cell::kGates, Shape>) {
    launch_units<Real, Cell::kGates, Shape>(launch, "forward",
                                            recurrent_forward_kernel<Cell, Shape, kScalarInput>,
                                            view.windows.n * view.B, view.H, 2, view);
  }
}

}  // namespace bppsa::cuda
