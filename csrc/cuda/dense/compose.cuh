#pragma once
// Composition: the product (A | b) of the steps of a segment, for all segments in parallel.
//
//   (A | b) starts as the segment's last step (A[last-1] | u[last-1]); step i, going down, makes it
//   (A[i] A | A[i] b + u[i]).
//
// The H + 1 columns of (A | b) never meet: each is a vector that walks on its own. A block
// therefore owns a *panel* of columns of one (segment, sample) and keeps it in shared memory for
// the whole segment, whatever H is; only the step's matrix streams through, in tiles of `rows` rows
// and kDepth columns, the next tile being fetched into registers while this one is multiplied.
//
// Threads: `row_groups` by width / kTile of them hold kTile x kTile sums each, which cover the
// panel and `rows` of its rows; all threads of the block carry tiles.
//
// Invariant: `now` is the panel of (A | b) after step i+1, `next` that after step i, complete when
// all passes of rows are. The barrier after a tile is stored also ends all work on the tile before
// it; with two tiles and two panels no second barrier is needed.

#include <algorithm>

#include "carry.cuh"
#include "compose_plan.cuh"

namespace bppsa::cuda {

template <typename scalar_t, class Shape>
struct Composer {
  using acc_t = Acc<scalar_t>;
  static constexpr int kTile = Shape::kTile, kRows = Shape::kTileRows;
  static constexpr int kDepth = Shape::template kTileColumns<acc_t>;

  // What a thread holds of the tile to come.
  struct Held {
    scalar_t entry[kHeld];
    scalar_t direct;
  };
  struct Stage {
    acc_t entry[kDepth][kRows + 1];  // transposed; the odd row length spreads columns over banks
  };

  const DenseChain<scalar_t>& chain;  // of one sample
  const int H, width, column0;
  const int rows;            // of a pass
  const int passes, blocks;  // of rows and of kDepth columns, that make a matrix
  const int row0, col0;      // this thread's sums, in the pass and in the panel
  const bool sums;           // whether it has any
  // The tile entries this thread carries: row carry_r + s * turn_r, column carry_c + s * turn_c in
  // turn s. Neighbouring threads run along what is contiguous in memory.
  const int carry_r, carry_c, turn_r, turn_c;
  acc_t *now, *next;
  Stage* stages;
  acc_t* directs;

  BPPSA_DEVICE Composer(const DenseChain<scalar_t>& chain, const ComposePlan& plan, int panel)
      : chain(chain),
        H(chain.H),
        width(plan.width),
        column0(panel * plan.width),
        rows(plan.row_groups * kTile),
        passes(ceil_div(H, rows)),
        blocks(ceil_div(H, kDepth)),
        row0(threadIdx.x / (plan.width / kTile) * kTile),
        col0(threadIdx.x % (plan.width / kTile) * kTile),
        sums(row0 < rows),
        carry_r(chain.jac_t.columns_fast() ? threadIdx.x / kDepth : threadIdx.x % kRows),
        carry_c(chain.jac_t.columns_fast() ? threadIdx.x % kDepth : threadIdx.x / kRows),
        turn_r(chain.jac_t.columns_fast() ? blockDim.x / kDepth : 0),
        turn_c(chain.jac_t.columns_fast() ? 0 : blockDim.x / kRows),
        now(reinterpret_cast<acc_t*>(shared_memory())),
        next(now + H * width),
        stages(reinterpret_cast<Stage*>(next + H * width)),
        directs(reinterpret_cast<acc_t*>(stages + 2)) {}

  BPPSA_DEVICE Held fetch(const Cursor& at, int64_t first) const {
    Held held;
    const bool inside = at.step >= first;
#pragma unroll
    for (int s = 0; s < kHeld; ++s) {
      const int r = carry_r + s * turn_r, c = carry_c + s * turn_c;
      const int row = at.pass * rows + r, column = at.block * kDepth + c;
      held.entry[s] = inside && r < rows && c < kDepth && row < H && column < H
                          ? chain.jac_t(at.step, row, column)
                          : static_cast<scalar_t>(0.f);
    }
    const int row = at.pass * rows + static_cast<int>(threadIdx.x);
    held.direct = inside && static_cast<int>(threadIdx.x) < rows && row < H
                      ? chain.grad(at.step, row)
                      : static_cast<scalar_t>(0.f);
    return held;
  }

  BPPSA_DEVICE void store(const Held& held, int parity) {
#pragma unroll
    for (int s = 0; s < kHeld; ++s) {
      const int r = carry_r + s * turn_r, c = carry_c + s * turn_c;
      if (r < kRows && c < kDepth) stages[parity].entry[c][r] = static_cast<acc_t>(held.entry[s]);
    }
    if (static_cast<int>(threadIdx.x) < rows) {
      directs[parity * kRows + threadIdx.x] = static_cast<acc_t>(held.direct);
    }
  }

  BPPSA_DEVICE void multiply(const Cursor& at, int parity, acc_t (&sum)[kTile][kTile]) const {
    const int depth = smaller(kDepth, H - at.block * kDepth);
    const acc_t* x = now + at.block * kDepth * width + col0;
#pragma unroll 4
    for (int k = 0; k < depth; ++k) {
      const acc_t* a = stages[parity].entry[k] + row0;
#pragma unroll
      for (int i = 0; i < kTile; ++i) {
#pragma unroll
        for (int j = 0; j < kTile; ++j) sum[i][j] += a[i] * x[k * width + j];
      }
    }
  }

  /// Writes this thread's sums of a pass to `next`, with u added in column H, and clears them.
  BPPSA_DEVICE void finish(const Cursor& at, int parity, acc_t (&sum)[kTile][kTile]) {
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
      const int row = at.pass * rows + row0 + i;
#pragma unroll
      for (int j = 0; j < kTile; ++j) {
        const acc_t u = column0 + col0 + j == H ? directs[parity * kRows + row0 + i] : acc_t(0);
        if (row < H) next[row * width + col0 + j] = sum[i][j] + u;
        sum[i][j] = 0;
      }
    }
  }

  /// The panel of (A[i] | u[i]) into `now`.
  BPPSA_DEVICE void seed(int64_t i) {
    const bool columns_fast = chain.jac_t.columns_fast();
    const int fast = columns_fast ? width : H;
    for (int e = threadIdx.x; e < H * width; e += blockDim.x) {
      const int r = columns_fast ? e / fast : e % fast, c = columns_fast ? e % fast : e / fast;
      const int column = column0 + c;
      now[r * width + c] = column < H    ? static_cast<acc_t>(chain.jac_t(i, r, column))
                           : column == H ? static_cast<acc_t>(chain.grad(i, r))
                                         : acc_t(0);
    }
  }

  /// The product of steps last-1 … first, this block's panel of it, to `product`.
  BPPSA_DEVICE void compose(int64_t last, int64_t first, acc_t* product) {
    seed(last - 1);
    Cursor ahead{last - 2}, at{last - 2};
    Held held = fetch(ahead, first);
    acc_t sum[kTile][kTile] = {};
    for (int parity = 0; at.step >= first; parity ^= 1) {
      store(held, parity);
      ahead.advance(passes, blocks);
      held = fetch(ahead, first);
      __syncthreads();
      if (sums) {
        multiply(at, parity, sum);
        if (at.block == blocks - 1) finish(at, parity, sum);
      }
      if (at.block == blocks - 1 && at.pass == passes - 1) {
        acc_t* const before = now;
        now = next;
        next = before;
      }
      at.advance(passes, blocks);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < H * width; e += blockDim.x) {
      const int r = e % H, c = e / H;
      if (column0 + c <= H) product[int64_t{column0 + c} * H + r] = now[r * width + c];
    }
  }
};

/// Products of all nodes but node 0, which nobody needs. Where handoff is given, the segment after
/// the last node is the last of the chain: its carry is u[T], so it is replayed here and now,
/// beside the products, and hands its g on.
template <typename scalar_t, class Shape>
__global__ void __launch_bounds__(kComposeThreads, 2)
    compose_kernel(DenseChain<scalar_t> chain, int64_t span, Products<Acc<scalar_t>> products,
                   ComposePlan plan, Vectors<scalar_t> out, Carries<Acc<scalar_t>> handoff) {
  const int64_t replays = handoff ? chain.B : 0;
  const int64_t tasks = replays + (products.nodes - 1) * chain.B * plan.panels;
  const Segments segments{chain.T, span};
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    if (task < replays) {
      replay_segment<Shape>(chain.from_sample(task), out.from_sample(task), chain.T,
                            segments.lo(products.nodes), static_cast<const Acc<scalar_t>*>(nullptr),
                            handoff(products.nodes - 1, task));
    } else {
      // Panels of one (node, sample) are neighbours: they read the same matrices.
      const int64_t e = task - replays, node = e / plan.panels / chain.B + 1;
      const int64_t b = e / plan.panels % chain.B;
      const DenseChain<scalar_t> own = chain.from_sample(b);
      Composer<scalar_t, Shape> composer(own, plan, static_cast<int>(e % plan.panels));
      composer.compose(segments.hi(node), segments.lo(node), products(node, b));
    }
    __syncthreads();  // the next task reuses the shared memory
  }
}

template <typename scalar_t>
void compose(const DenseChain<scalar_t>& chain, int64_t span,
             const Products<Acc<scalar_t>>& products, const ComposePlan& plan,
             const Vectors<scalar_t>& out, const Carries<Acc<scalar_t>>& handoff,
             Launcher& launch) {
  using acc_t = Acc<scalar_t>;
  const int64_t replays = handoff ? chain.B : 0;
  const size_t walk = walk_shared(chain.H, sizeof(acc_t));
  with_shape(chain.H, [&](auto shape) {
    launch("compose", compose_kernel<scalar_t, decltype(shape)>,
           replays + (products.nodes - 1) * chain.B * plan.panels, plan.threads,
           std::max(plan.shared, walk), chain, span, products, plan, out, handoff);
  });
}

}  // namespace bppsa::cuda
