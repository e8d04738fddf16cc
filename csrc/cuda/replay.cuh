#pragma once
// Replay: with the carry of every segment known, each segment is walked on its own and writes its
// own g[i]. The plain linear scan is the replay of one segment that is the whole chain.
//
// Segment k covers steps [k * span, min((k + 1) * span, T)); its carry is g at its end. A block
// works on one (segment, sample), and g[T] belongs to the segment that ends there.

#include "walk.cuh"

namespace bppsa::cuda {

// Vectors between segments: the carry of segment k of sample b, in the type of the arithmetic.
template <typename acc_t>
struct Carries {
  acc_t* data;
  int64_t B;
  int H;

  BPPSA_BOTH acc_t* operator()(int64_t k, int64_t b) const { return data + (k * B + b) * H; }
  BPPSA_BOTH explicit operator bool() const { return data != nullptr; }
};

/// Walks steps last-1 … first of one sample from `carry`, or from u[T] where carry is null, and
/// writes g[first] … g[last-1] (and g[T]) to out, and g[first] to handoff too unless that is null.
template <class Shape, class Cell>
BPPSA_DEVICE void replay_segment(const Chain<Cell>& chain,
                                 const Vectors<typename Cell::scalar_t>& out, int64_t last,
                                 int64_t first, const typename Cell::acc_t* carry,
                                 typename Cell::acc_t* handoff) {
  using acc_t = typename Cell::acc_t;
  using scalar_t = typename Cell::scalar_t;
  Panes<acc_t> panes(reinterpret_cast<acc_t*>(shared_memory()), chain.H);
  panes.fill(chain.H,
             [&](int r) { return carry ? carry[r] : static_cast<acc_t>(chain.grad(chain.T, r)); });
  if (last == chain.T) {
    for (int r = threadIdx.x; r < chain.H; r += blockDim.x) {
      out(chain.T, r) = static_cast<scalar_t>(panes.now[r]);
    }
  }
  Publish<scalar_t> publish(out);
  walk<Shape>(chain, last, first, panes, publish);
  if (handoff) {
    for (int r = threadIdx.x; r < chain.H; r += blockDim.x) handoff[r] = panes.now[r];
  }
}

template <class Cell, class Shape>
__global__ void __launch_bounds__(Shape::kWalkThreads, 512 / Shape::kWalkThreads)
    replay_kernel(Chain<Cell> chain, Vectors<typename Cell::scalar_t> out, int64_t span,
                  int64_t segments, Carries<typename Cell::acc_t> carries) {
  for (int64_t task = blockIdx.x; task < segments * chain.B; task += gridDim.x) {
    const int64_t k = task / chain.B, b = task % chain.B;
    replay_segment<Shape>(
        chain.from_sample(b), out.from_sample(b), smaller((k + 1) * span, chain.T), k * span,
        carries ? carries(k, b) : nullptr, static_cast<typename Cell::acc_t*>(nullptr));
    __syncthreads();  // the next task reuses the shared memory
  }
}

template <class Cell>
void replay(const Chain<Cell>& chain, const Vectors<typename Cell::scalar_t>& out, int64_t span,
            int64_t segments, const Carries<typename Cell::acc_t>& carries, Launcher& launch) {
  with_shape(chain.H, [&](auto shape) {
    using Shape = decltype(shape);
    launch("replay", replay_kernel<Cell, Shape>, segments * chain.B,
           walk_threads<Shape>(chain.H, chain.cell.columns_fast()),
           walk_shared(chain.H, sizeof(typename Cell::acc_t)), chain, out, span, segments, carries);
  });
}

}  // namespace bppsa::cuda
