#pragma once
// A regularised layer's forward: a block for each sample.

#include "../device/launcher.cuh"
#include "regularised_row.cuh"

namespace bppsa::cuda {

/// w_t: W_hh transposed, (H, GH); of independent units w_hh (H).
template <class Cell, bool kNormalised, typename Real>
__global__ void __launch_bounds__(kMostWarps* kWarp)
    regularised_forward_kernel(RegularisedForwardRequest request, const Real* w_t, Real* unsaved) {
  using View = RegularisedView<Cell, kNormalised, Real>;
  using Saved = typename View::Saved;
  using Blocks = Normalised<Cell>;
  const View view{request};
  const int64_t H = view.H, GH = view.GH, width = request.saved_width;
  const int64_t c_after = Saved::c_after(H, request.blends());
  const Real share = Real(request.zoneout);
  Real* const room = reinterpret_cast<Real*>(shared_memory());
  Real *const h = room + kMostWarps, *const c = h + H, *const entering = c + H;
  Real* const sums = entering + H;
  for (int64_t b = blockIdx.x; b < request.B; b += gridDim.x) {
    each_of_block(H, [&](int64_t k) {
      h[k] = view.number(request.h0, b * H + k);
      if (View::kHasC) c[k] = view.number(request.c0, b * H + k);
      entering[k] = h[k] * (request.enters ? view.in(request.enters)[b * H + k] : Real(1));
    });
    __syncthreads();
    for (int64_t t = 0; t < request.T; ++t) {
      Real* const row = request.saved
                            ? static_cast<Real*>(request.saved) + (t * request.B + b) * width
                            : unsaved + b * width;
      each_of_block(GH, [&](int64_t j) {
        sums[j] = request.diagonal ? entering[j] * w_t[j] : dot_column(entering, w_t + j, GH, H);
        if (!kNormalised && !kSeesC<Cell>) sums[j] += view.number(request.b_hh, j);
      });
      __syncthreads();
      if constexpr (kNormalised) {
        Real* const moments = row + Saved::kRows * H;
        for (int block = 0; block < Blocks::kBlocks; ++block) {
          const int64_t first = Blocks::begin(block) * H, n = Blocks::gates(block) * H;
          const BlockMoments<Real> of(sums + first, n, room);
          each_of_block(n, [&](int64_t i) {
            const int64_t j = first + i;
            const Real normal = (sums[j] - of.mean) * of.scale;
            row[Saved::kSums * H + j] = normal;
            sums[j] = view.in(request.norm_hh)[j] * normal + view.number(request.b_hh, j);
          });
          if (threadIdx.x == 0) moments[block] = of.scale;
        }
        if (threadIdx.x == 0)
          for (int i = Blocks::kBlocks; i < Saved::kMoments; ++i) moments[i] = 0;
        __syncthreads();
      }
      const Real* const x = view.in(request.x) + t * request.x_stride[0] + b * request.x_stride[1];
      // The new state of a unit, of which its old one may keep something.
      const auto blended = [&](const uint8_t* kept, int64_t k, Real old, Real now) {
        // (Nothing of the old one is not 0 times it, which may be infinite.)
        if (share != 0) now += share * (old - now);
        return view.kept(kept, t, b, k) ? old : now;
      };
      const auto show = [&](int64_t k, Real now) {
        h[k] = blended(request.kept_h, k, h[k], now);
        static_cast<Real*>(request.output)[t * request.step + b * H + k] = h[k];
        entering[k] = h[k] * (request.enters ? view.in(request.enters)[b * H + k] : Real(1));
      };
      each_of_block(H, [&](int64_t k) {
        // (Copies: nvcc has no place for a class's own constants.)
        constexpr auto from_x = Cell::FromX::slots;
        constexpr auto from_h = Cell::FromH::slots;
        constexpr auto activation = Cell::kActivation;
        Real slot[Cell::kSlots];
#pragma unroll
        for (int i = 0; i < Cell::kSlots; ++i) {
          Real z = from_x.gate[i] >= 0 ? x[from_x.gate[i] * H + k] : Real(0);
          if (from_h.gate[i] >= 0) z += sums[from_h.gate[i] * H + k];
          slot[i] = activated(activation.of[i], z);
        }
        UnitState<Real> before{};
        (View::kHasC ? before.c : before.h) = View::kHasC ? c[k] : h[k];
        UnitState<Real> after;
        if constexpr (kSeesC<Cell>) {
          Real p[Cell::kGates];
          view.peepholes(k, p);
          after = Cell::template step<typename View::Math>(slot, before, p);
        } else {
          after = Cell::template step<typename View::Math>(slot, before);
        }
        if constexpr (Cell::kKept) {
#pragma unroll
          for (int i = 0; i < Cell::kSlots; ++i) row[i * H + k] = slot[i];
        } else {
          row[k] = after.h;
        }
        if constexpr (View::kHasC) row[Saved::kC * H + k] = after.c;
        if constexpr (!(View::kHasC && kNormalised)) show(k, after.h);
        if constexpr (View::kHasC)
          row[c_after + k] = c[k] = blended(request.kept_c, k, c[k], after.c);
      });
      __syncthreads();
      if constexpr (View::kHasC && kNormalised) {
        const Real* const now = row + Saved::kC * H;
        const BlockMoments<Real> of(now, H, room);
        each_of_block(H, [&](int64_t k) {
          const Real z = view.in(request.norm_c)[k] * ((now[k] - of.mean) * of.scale) +
                         view.number(request.b_c, k);
          show(k, row[(Cell::kSlots - 1) * H + k] * tanh_of(z));
        });
        if (threadIdx.x == 0) {
          row[Saved::kRows * H + 2] = of.mean;
          row[Saved::kRows * H + 3] = of.scale;
        }
        __syncthreads();
      }
    }
    each_of_block(H, [&](int64_t k) {
      static_cast<Real*>(request.h_n)[b * H + k] = h[k];
      if (View::kHasC) static_cast<Real*>(request.c_n)[b * H + k] = c[k];
    });
    __syncthreads();
  }
}

/// to (n, m) = from (m, n), transposed.
template <typename Real>
__global__ void __launch_bounds__(kThreadsOfBlock)
    transpose_kernel(const Real* from, int64_t m, int64_t n, Real* to) {
  for_each_thread(m * n, [&](int64_t e) { to[e] = from[e % m * n + e / m]; });
}

template <class Cell, bool kNormalised, typename Real>
void regularised_forward(const RegularisedForwardRequest& request, Launcher& launch) {
  const int64_t H = request.H, GH = Cell::kGates * H;
  const Real* w_t = static_cast<const Real*>(request.w_hh);
  if (!request.diagonal) {
    Real* const transposed = launch.template allocate<Real>(GH * H);
    launch_threads(launch, "transpose", transpose_kernel<Real>, GH * H, w_t, GH, H, transposed);
    w_t = transposed;
  }
  Real* const unsaved =
      request.saved ? nullptr : launch.template allocate<Real>(request.B * request.saved_width);
  launch("regularised forward", regularised_forward_kernel<Cell, kNormalised, Real>, request.B,
         regularised_threads(GH), (kMostWarps + 3 * H + GH) * sizeof(Real), request, w_t, unsaved);
}

}  // namespace bppsa::cuda
