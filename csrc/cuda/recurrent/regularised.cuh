#pragma once
// A regularised layer (recurrent/regularised.h says what it computes) on CUDA: a block walks a
// sample from end to end, its state in shared memory, W_hh read from the caches. What normalises a
// row has to wait for all of its threads anyway; a step takes a few barriers of one block, and
// samples never wait for each other. The weights' gradients are one product over all steps behind
// the walk.

#include "../device/math.cuh"
#include "../device/threads.cuh"
#include "operands.cuh"
// After what makes the emulator's compiler take device code.
#include "../../cells/formulas.h"
#include "../../cells/list.h"
#include "../../recurrent/regularised_row.h"

namespace bppsa::cuda {

template <typename Real>
BPPSA_DEVICE Real activated(Activation which, Real z) {
  return which == Activation::sigmoid ? sigmoid(z) : which == Activation::tanh ? tanh_of(z) : z;
}

// The sum over all threads of a block, for all of them. `room`: a number a warp.
template <typename Real>
BPPSA_DEVICE Real block_sum(Real own, Real* room) {
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2) own += __shfl_xor_sync(0xffffffffu, own, d);
  __syncthreads();  // the room has been read
  if (threadIdx.x % kWarp == 0) room[threadIdx.x / kWarp] = own;
  __syncthreads();
  Real sum = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) sum += room[w];
  return sum;
}

constexpr int kMostWarps = 16;

/// Numbers i < n, shared out to the threads of a block.
template <class Run>
BPPSA_DEVICE void each_of_block(int64_t n, const Run& run) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) run(i);
}

// Of v (n): the mean, and by what (v - mean) is multiplied to have variance 1.
template <typename Real>
struct BlockMoments {
  Real mean, scale;

  BPPSA_DEVICE BlockMoments(const Real* v, int64_t n, Real* room) {
    Real own = 0;
    each_of_block(n, [&](int64_t i) { own += v[i]; });
    mean = block_sum(own, room) / Real(n);
    own = 0;
    each_of_block(n, [&](int64_t i) { own += (v[i] - mean) * (v[i] - mean); });
    scale = 1 / sqrt(block_sum(own, room) / Real(n) + Real(1e-5));
  }
};

// out[j] = sum over i of v[i] m[i * pitch + j], for j < n: neighbouring threads read neighbours.
template <typename Real>
BPPSA_DEVICE Real dot_column(const Real* v, const Real* m, int64_t pitch, int64_t n) {
  Real sum[4] = {};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4)
#pragma unroll
    for (int u = 0; u < 4; ++u) sum[u] += v[i + u] * m[(i + u) * pitch];
  for (; i < n; ++i) sum[0] += v[i] * m[i * pitch];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// A layer's tensors, typed, as both directions read them.
template <class Cell, bool kNormalised, typename Real>
struct RegularisedView {
  using Saved = SavedRow<Cell, kNormalised>;
  using Math = ScalarMath<Real>;
  static constexpr bool kHasC = Cell::kStates == 2;

  const RegularisedRequest& request;
  const int64_t H = request.H, GH = Cell::kGates * H;

  BPPSA_DEVICE static const Real* in(const void* data) { return static_cast<const Real*>(data); }
  BPPSA_DEVICE Real number(const void* data, int64_t i) const {
    return data ? in(data)[i] : Real(0);
  }
  BPPSA_DEVICE bool kept(const uint8_t* all, int64_t t, int64_t b, int64_t k) const {
    return all && all[t * request.kept_step + b * H + k];
  }
};

/// w_t: W_hh transposed, (H, GH).
template <class Cell, bool kNormalised, typename Real>
__global__ void __launch_bounds__(kMostWarps* kWarp)
    regularised_forward_kernel(RegularisedForwardRequest request, const Real* w_t, Real* unsaved) {
  using View = RegularisedView<Cell, kNormalised, Real>;
  using Saved = typename View::Saved;
  using Blocks = Normalised<Cell>;
  const View view{request};
  const int64_t H = view.H, GH = view.GH, width = Saved::width(H);
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
        sums[j] = dot_column(entering, w_t + j, GH, H);
        if (!kNormalised) sums[j] += view.number(request.b_hh, j);
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
        const UnitState<Real> after = Cell::template step<typename View::Math>(slot, before);
        if constexpr (Cell::kKept) {
#pragma unroll
          for (int i = 0; i < Cell::kSlots; ++i) row[i * H + k] = slot[i];
        } else {
          row[k] = after.h;
        }
        if constexpr (View::kHasC) row[Saved::kC * H + k] = after.c;
        if constexpr (!(View::kHasC && kNormalised)) show(k, after.h);
        if constexpr (View::kHasC)
          row[Saved::kCAfter * H + k] = c[k] = blended(request.kept_c, k, c[k], after.c);
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

// Sums over a sample's steps, in rows of `width` numbers: of b_hh and norm_hh (GH each), of norm_c
// and b_c (H each).
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
  const int64_t H = view.H, GH = view.GH, width = Saved::width(H);
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
                   : t          ? row[Saved::kCAfter * H + k - request.B * width]
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
        Cell::template pull<typename View::Math>(
            Cell::template factors<typename View::Math>(slot, output, before), g, of_sums, past);
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
        e_all[place * H + k] = h_before(k) * mask;
        g_h[k] = dot_column(d, view.in(request.w_hh) + k, H, GH) * mask + past_h[k];
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

/// to (n, m) = from (m, n), transposed.
template <typename Real>
__global__ void __launch_bounds__(kThreadsOfBlock)
    transpose_kernel(const Real* from, int64_t m, int64_t n, Real* to) {
  for_each_thread(m * n, [&](int64_t e) { to[e] = from[e % m * n + e / m]; });
}

inline int regularised_threads(int64_t GH) {
  return static_cast<int>(smaller<int64_t>(round_up<int64_t>(GH, kWarp), kMostWarps * kWarp));
}

template <class Cell, bool kNormalised, typename Real>
void regularised_forward(const RegularisedForwardRequest& request, Launcher& launch) {
  using Saved = SavedRow<Cell, kNormalised>;
  const int64_t H = request.H, GH = Cell::kGates * H;
  Real* const w_t = launch.template allocate<Real>(GH * H);
  launch_threads(launch, "transpose", transpose_kernel<Real>, GH * H,
                 static_cast<const Real*>(request.w_hh), GH, H, w_t);
  Real* const unsaved =
      request.saved ? nullptr : launch.template allocate<Real>(request.B * Saved::width(H));
  launch("regularised forward", regularised_forward_kernel<Cell, kNormalised, Real>, request.B,
         regularised_threads(GH), (kMostWarps + 3 * H + GH) * sizeof(Real), request, w_t, unsaved);
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
  if (Real* const to = static_cast<Real*>(request.grad_w_hh))
    gemm(along_columns<Real>(d, GH), along_columns<Real>(e, H), GH, H, rows, to, launch);
  const auto add = [&](void* to, int64_t first, int64_t count) {
    if (to)
      launch_threads(launch, "add columns", add_columns_kernel<Real>, count, sums.data + first,
                     request.B, sums.width(), count, static_cast<Real*>(to));
  };
  add(request.grad_b_hh, 0, GH);
  add(request.grad_norm_hh, GH, GH);
  add(request.grad_norm_c, 2 * GH, H);
  add(request.grad_b_c, 2 * GH + H, H);
}

/// Calls run(kind), kind as `RegularisedView`, with what a request asks for.
template <class Run>
void with_regularised(const RegularisedRequest& request, const Run& run) {
  const auto with = [&](auto zero) {
    using Real = decltype(zero);
    const bool normalised = request.norm_hh;
    if (request.cell == CellKind::lstm)
      normalised ? run(Lstm{}, std::true_type{}, Real{}) : run(Lstm{}, std::false_type{}, Real{});
    else if (request.cell == CellKind::gru)
      normalised ? run(Gru{}, std::true_type{}, Real{}) : run(Gru{}, std::false_type{}, Real{});
    else if (request.cell == CellKind::ligru)
      run(LiGru{}, std::false_type{}, Real{});
    else if (request.cell == CellKind::rnn_relu)
      run(RnnRelu{}, std::false_type{}, Real{});
    else
      run(RnnTanh{}, std::false_type{}, Real{});
  };
  request.storage == Storage::f64 ? with(double{}) : with(float{});
}

}  // namespace bppsa::cuda
