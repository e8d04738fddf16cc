#pragma once
// A regularised layer's backward: a block for each sample, and the weights' gradients behind it.

#include "operands.cuh"
#include "regularised_row.cuh"

namespace bppsa::cuda {

// Sums over a sample's steps, in rows of `width` numbers: of b_hh and norm_hh (GH each; of
// independent units, which are not normalised, w_hh in norm_hh's place), of norm_c and b_c (H
// each).
template <typename Real>
struct RegularisedSums {
  Real* data;
  int64_t H, GH;

  BPPSA_BOTH int64_t width() const { return 2 * GH + 2 * H; }
  BPPSA_DEVICE Real* of(int64_t b) const { return data + b * width(); }
};

/// d: gradients of the state's sums, (T, B, GH); e: what entered W_hh, (T, B, H).
template <class Cell, bool kNormalised, typename Real>
__global__ void __launch_bounds__(kMostWarps* kWarp)
    regularised_backward_kernel(RegularisedBackwardRequest request, Real* d_all, Real* e_all,
                                RegularisedSums<Real> parts) {
  using View = RegularisedView<Cell, kNormalised, Real>;
  using Saved = typename View::Saved;
  using Blocks = Normalised<Cell>;
  const View view{request};
  const int64_t H = view.H, GH = view.GH, width = request.saved_width;
  const int64_t c_after = Saved::c_after(H, request.blends());
  const Real share = Real(request.zoneout);
  Real* const room = reinterpret_cast<Real*>(shared_memory());
  Real *const g_h = room + kMostWarps, *const g_c = g_h + H, *const past_h = g_c + H;
  Real *const of_c = past_h + H, *const normal_c = of_c + H, *const d = normal_c + H;
  for (int64_t b = blockIdx.x; b < request.B; b += gridDim.x) {
    Real *const sum_b = parts.of(b), *const sum_norm = sum_b + GH;
    Real *const sum_norm_c = sum_norm + GH, *const sum_b_c = sum_norm_c + H;
    each_of_block(parts.width(), [&](int64_t i) { sum_b[i] = 0; });
    each_of_block(H, [&](int64_t k) {
      g_h[k] = view.number(request.grad_hn, b * H + k);
      g_c[k] = view.number(request.grad_cn, b * H + k);
    });
    __syncthreads();
    for (int64_t t = request.T - 1; t >= 0; --t) {
      const Real* const row = view.in(request.saved) + (t * request.B + b) * width;
      const Real* const moments = row + Saved::kRows * H;
      // Of a state's gradient, the new state's share; the old one has the rest.
      const auto of_new = [&](const uint8_t* kept, int64_t k, Real g) {
        return view.kept(kept, t, b, k) ? Real(0) : share != 0 ? g - share * g : g;
      };
      const auto of_old = [&](const uint8_t* kept, int64_t k, Real g) {
        return view.kept(kept, t, b, k) ? g : share != 0 ? share * g : Real(0);
      };
      const auto h_before = [&](int64_t k) {
        return t ? view.in(request.output)[(t - 1) * request.step + b * H + k]
                 : view.number(request.h0, b * H + k);
      };
      Real mean = 0, moment = 0;
      if (request.grad)
        each_of_block(H, [&](int64_t k) {
          g_h[k] +=
              view.in(request.grad)[t * request.grad_stride[0] + b * request.grad_stride[1] + k];
        });
      if constexpr (View::kHasC && kNormalised) {
        // Through h = o tanh(norm_c LN(c) + b_c).
        each_of_block(H, [&](int64_t k) {
          const Real normal = (row[Saved::kC * H + k] - moments[2]) * moments[3];
          const Real gain = view.in(request.norm_c)[k];
          const Real shown = tanh_of(gain * normal + view.number(request.b_c, k));
          const Real o = row[(Cell::kSlots - 1) * H + k], g = of_new(request.kept_h, k, g_h[k]);
          d[(Cell::kGates - 1) * H + k] = g * shown * (o * (1 - o));
          const Real of_z = g * o * (1 - shown * shown);
          sum_norm_c[k] += of_z * normal;
          sum_b_c[k] += of_z;
          of_c[k] = of_z * gain;
          normal_c[k] = normal;
          mean += of_c[k];
          moment += of_c[k] * normal;
        });
        mean = block_sum(mean, room) / Real(H);
        moment = block_sum(moment, room) / Real(H);
      }
      each_of_block(H, [&](int64_t k) {
        Real slot[Cell::kSlots] = {}, g[Cell::kStates], past[Cell::kStates] = {};
        Real of_sums[Cell::kRows], output = 0, before = 0, old_c = 0;
        if constexpr (Cell::kKept) {
#pragma unroll
          for (int i = 0; i < Cell::kSlots; ++i) slot[i] = row[i * H + k];
          before = !View::kHasC ? h_before(k)
                   : t          ? row[c_after + k - request.B * width]
                                : view.number(request.c0, b * H + k);
        } else {
          output = row[k];
        }
        g[0] = of_new(request.kept_h, k, g_h[k]);
        past_h[k] = of_old(request.kept_h, k, g_h[k]);
        if constexpr (View::kHasC) {
          g[1] = of_new(request.kept_c, k, g_c[k]);
          old_c = of_old(request.kept_c, k, g_c[k]);
          if constexpr (kNormalised) {
            g[0] = 0;  // o's own gradient is there already
            g[1] += moments[3] * (of_c[k] - mean - normal_c[k] * moment);
          } else {
            output = tanh_of(row[Saved::kC * H + k]);
          }
        }
        const auto factors = [&] {
          if constexpr (kSeesC<Cell>) {
            Real p[Cell::kGates];
            view.peepholes(k, p);
            return Cell::template factors<typename View::Math>(slot, output, before, p);
          } else {
            return Cell::template factors<typename View::Math>(slot, output, before);
          }
        };
        Cell::template pull<typename View::Math>(factors(), g, of_sums, past);
        if constexpr (View::kHasC) g_c[k] = past[1] + old_c;
        if constexpr (View::kHasC && kNormalised)
          of_sums[Cell::kRows - 1] = d[(Cell::kGates - 1) * H + k];
        if constexpr (Cell::kPassesH) past_h[k] += past[0];
        Real* const to_x =
            static_cast<Real*>(request.grad_x) + t * request.grad_x_step + b * GH + k;
#pragma unroll
        for (int i = 0; i < Cell::kGates; ++i) {
          to_x[Cell::input_gate(i) * H] = of_sums[i];
          d[i * H + k] = of_sums[Cell::kFirstRecurrentRow + i];
          if constexpr (kSeesC<Cell>)
            sum_b[i * H + k] +=
                d[i * H + k] * (i == Cell::kGates - 1 ? row[Saved::kC * H + k] : before);
          else
            sum_b[i * H + k] += d[i * H + k];
        }
      });
      __syncthreads();
      if constexpr (kNormalised) {
        for (int block = 0; block < Blocks::kBlocks; ++block) {
          const int64_t first = Blocks::begin(block) * H, n = Blocks::gates(block) * H;
          const Real* const normal = row + Saved::kSums * H + first;
          mean = moment = 0;
          each_of_block(n, [&](int64_t i) {
            const int64_t j = first + i;
            sum_norm[j] += d[j] * normal[i];
            d[j] *= view.in(request.norm_hh)[j];
            mean += d[j];
            moment += d[j] * normal[i];
          });
          mean = block_sum(mean, room) / Real(n);
          moment = block_sum(moment, room) / Real(n);
          each_of_block(n, [&](int64_t i) {
            d[first + i] = moments[block] * (d[first + i] - mean - normal[i] * moment);
          });
        }
        __syncthreads();
      }
      const int64_t place = t * request.B + b;
      each_of_block(GH, [&](int64_t j) { d_all[place * GH + j] = d[j]; });
      each_of_block(H, [&](int64_t k) {
        const Real mask = request.enters ? view.in(request.enters)[b * H + k] : Real(1);
        const Real* const w = view.in(request.w_hh) + k;
        const Real entering = h_before(k) * mask;
        e_all[place * H + k] = entering;
        if (request.diagonal) sum_norm[k] += d[k] * entering;
        g_h[k] = (request.diagonal ? d[k] * *w : dot_column(d, w, H, GH)) * mask + past_h[k];
      });
      __syncthreads();
    }
    each_of_block(H, [&](int64_t k) {
      if (request.grad_h0) static_cast<Real*>(request.grad_h0)[b * H + k] = g_h[k];
      if (request.grad_c0) static_cast<Real*>(request.grad_c0)[b * H + k] = g_c[k];
    });
    __syncthreads();
  }
}

/// to[k] = the sum of column `first` + k of `rows` rows of `width` numbers.
template <typename Real>
__global__ void __launch_bounds__(kThreadsOfBlock)
    add_columns_kernel(const Real* from, int64_t rows, int64_t width, int64_t count, Real* to) {
  for_each_thread(count, [&](int64_t k) {
    Real sum = 0;
    for (int64_t row = 0; row < rows; ++row) sum += from[row * width + k];
    to[k] = sum;
  });
}

template <class Cell, bool kNormalised, typename Real>
void regularised_backward(const RegularisedBackwardRequest& request, Launcher& launch) {
  const int64_t H = request.H, GH = Cell::kGates * H, rows = request.T * request.B;
  Real* const d = launch.template allocate<Real>(rows * GH);
  Real* const e = launch.template allocate<Real>(rows * H);
  RegularisedSums<Real> sums{nullptr, H, GH};
  sums.data = launch.template allocate<Real>(request.B * sums.width());
  launch("regularised backward", regularised_backward_kernel<Cell, kNormalised, Real>, request.B,
         regularised_threads(GH), (kMostWarps + 5 * H + GH) * sizeof(Real), request, d, e, sums);
  if (Real* const to = static_cast<Real*>(request.diagonal ? nullptr : request.grad_w_hh))
    gemm(along_columns<Real>(d, GH), along_columns<Real>(e, H), GH, H, rows, to, launch);
  const auto add = [&](void* to, int64_t first, int64_t count) {
    if (to)
      launch_threads(launch, "add columns", add_columns_kernel<Real>, count, sums.data + first,
                     request.B, sums.width(), count, static_cast<Real*>(to));
  };
  add(request.grad_b_hh, 0, GH);
  add(request.diagonal ? request.grad_w_hh : request.grad_norm_hh, GH, GH);
  add(request.grad_norm_c, 2 * GH, H);
  add(request.grad_b_c, 2 * GH + H, H);
}

}  // namespace bppsa::cuda
