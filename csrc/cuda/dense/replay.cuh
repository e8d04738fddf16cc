#pragma once
// Replay: with the carry of every segment known, each segment is walked on its own and writes its
// own g[i]. The plain linear scan is the replay of one segment that is the whole chain.
//
// A block works on one (segment, sample), and g[T] belongs to the segment that ends there.

#include "../device/launcher.cuh"
#include "../device/segments.cuh"
#include "walk.cuh"

namespace bppsa::cuda {

/// Walks steps last-1 … first of one sample from `carry`, or from u[T] where carry is null, and
/// writes g[first] … g[last-1] (and g[T]) to out, and g[first] to handoff too unless that is null.
template <class Shape, typename scalar_t>
BPPSA_DEVICE void replay_segment(const DenseChain<scalar_t>& chain, const Vectors<scalar_t>& out,
                                 int64_t last, int64_t first, const Acc<scalar_t>* carry,
                                 Acc<scalar_t>* handoff) {
  using acc_t = Acc<scalar_t>;
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

template <typename scalar_t, class Shape>
__global__ void __launch_bounds__(Shape::kWalkThreads, 512 / Shape::kWalkThreads)
    replay_kernel(DenseChain<scalar_t> chain, Vectors<scalar_t> out, int64_t span, int64_t count,
                  Carries<Acc<scalar_t>> carries) {
  const Segments segments{chain.T, span};
  for (int64_t task = blockIdx.x; task < count * chain.B; task += gridDim.x) {
    const int64_t k = task / chain.B, b = task % chain.B;
    replay_segment<Shape>(chain.from_sample(b), out.from_sample(b), segments.hi(k), segments.lo(k),
                          carries ? carries(k, b) : nullptr, static_cast<Acc<scalar_t>*>(nullptr));
    __syncthreads();  // the next task reuses the shared memory
  }
}

template <typename scalar_t>
void replay(const DenseChain<scalar_t>& chain, const Vectors<scalar_t>& out, int64_t span,
            int64_t count, const Carries<Acc<scalar_t>>& carries, Launcher& launch) {
  with_shape(chain.H, [&](auto shape) {
    using Shape = decltype(shape);
    launch("replay", replay_kernel<scalar_t, Shape>, count * chain.B,
           walk_threads<Shape>(chain.H, chain.jac_t.columns_fast()),
           walk_shared(chain.H, sizeof(Acc<scalar_t>)), chain, out, span, count, carries);
  });
}

}  // namespace bppsa::cuda
