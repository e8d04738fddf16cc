#pragma once
// An independently recurrent layer (requests/indrnn.h): B*H chains of one number each, by the
// formula of the vanilla RNN. A thread walks one of them; threads of a warp have neighbours, so
// that a step of a warp reads whole lines, and each has kIndependentAhead steps in flight.

#include "../../requests/indrnn.h"
#include "../device/math.cuh"
#include "../device/threads.cuh"
// After what makes the emulator's compiler take device code.
#include "../../cells/rnn.h"

namespace bppsa::cuda {

constexpr int kIndependentAhead = 8;

/// Calls run(i, item) for i in [0, steps), with item = fetch(i) fetched some steps before.
template <class Fetch, class Run>
BPPSA_DEVICE void with_items_ahead(int64_t steps, const Fetch& fetch, const Run& run) {
  int64_t i = 0;
  for (; i + kIndependentAhead <= steps; i += kIndependentAhead) {
    decltype(fetch(i)) items[kIndependentAhead];
#pragma unroll
    for (int n = 0; n < kIndependentAhead; ++n) items[n] = fetch(i + n);
#pragma unroll
    for (int n = 0; n < kIndependentAhead; ++n) run(i + n, items[n]);
  }
  for (; i < steps; ++i) run(i, fetch(i));
}

template <class Formula, typename Real>
__global__ void __launch_bounds__(kThreadsOfBlock)
    independent_forward_kernel(IndRnnForwardRequest request) {
  const int64_t H = request.H;
  for_each_thread(request.B * H, [&](int64_t e) {
    const int64_t b = e / H, k = e % H;
    const Real* const x = static_cast<const Real*>(request.x) + b * request.x_stride[1] + k;
    const Real u = static_cast<const Real*>(request.u)[k];
    Real* const output = static_cast<Real*>(request.output) + e;
    Real h = request.h0 ? static_cast<const Real*>(request.h0)[e] : Real(0);
    with_items_ahead(
        request.T, [&](int64_t t) { return x[t * request.x_stride[0]]; },
        [&](int64_t t, Real from_x) {
          Real z[] = {from_x + u * h};
          h = Formula::template step<ScalarMath<Real>>(z, UnitState<Real>{}).h;
          output[t * request.step] = h;
        });
    static_cast<Real*>(request.h_n)[e] = h;
  });
}

// What a step of the backward reads.
template <typename Real>
struct IndependentItem {
  Real h, before, direct;
};

// sums (B, H), or null: what each chain adds to the gradient of u.
template <class Formula, typename Real>
__global__ void __launch_bounds__(kThreadsOfBlock)
    independent_backward_kernel(IndRnnBackwardRequest request, Real* sums) {
  const int64_t H = request.H, last = request.T - 1;
  for_each_thread(request.B * H, [&](int64_t e) {
    using Math = ScalarMath<Real>;
    const int64_t b = e / H, k = e % H;
    const Real u = static_cast<const Real*>(request.u)[k];
    const Real* const output = static_cast<const Real*>(request.output) + e;
    const Real* const grad =
        request.grad ? static_cast<const Real*>(request.grad) + b * request.grad_stride[1] + k
                     : nullptr;
    const Real h0 = request.h0 ? static_cast<const Real*>(request.h0)[e] : Real(0);
    Real* const grad_x = static_cast<Real*>(request.grad_x) + e;
    Real handed = request.grad_hn ? static_cast<const Real*>(request.grad_hn)[e] : Real(0);
    Real sum = 0;
    with_items_ahead(
        request.T,
        [&](int64_t i) {
          const int64_t t = last - i;
          return IndependentItem<Real>{output[t * request.step],
                                       t > 0 ? output[(t - 1) * request.step] : h0,
                                       grad ? grad[t * request.grad_stride[0]] : Real(0)};
        },
        [&](int64_t i, const IndependentItem<Real>& item) {
          const Real none[1] = {}, g[1] = {item.direct + handed};
          const auto factors = Formula::template factors<Math>(none, item.h, Real(0));
          Real d[1], past[1];
          Formula::template pull<Math>(factors, g, d, past);
          grad_x[(last - i) * request.step] = d[0];
          sum += d[0] * item.before;
          handed = u * d[0];
        });
    if (request.grad_h0) static_cast<Real*>(request.grad_h0)[e] = handed;
    if (sums) sums[e] = sum;
  });
}

/// to (H) = the sum of the B rows of `parts`.
template <typename Real>
__global__ void __launch_bounds__(kThreadsOfBlock)
    add_samples_kernel(const Real* parts, int64_t B, int64_t H, Real* to) {
  for_each_thread(H, [&](int64_t k) {
    Real sum = 0;
    for (int64_t b = 0; b < B; ++b) sum += parts[b * H + k];
    to[k] = sum;
  });
}

template <class Formula, typename Real>
void independent_forward(const IndRnnForwardRequest& request, Launcher& launch) {
  launch_threads(launch, "independent forward", independent_forward_kernel<Formula, Real>,
                 request.B * request.H, request);
}

template <class Formula, typename Real>
void independent_backward(const IndRnnBackwardRequest& request, Launcher& launch) {
  const int64_t B = request.B, H = request.H;
  Real* const to = static_cast<Real*>(request.grad_u);
  Real* const sums = to ? launch.template allocate<Real>(B * H) : nullptr;
  launch_threads(launch, "independent backward", independent_backward_kernel<Formula, Real>, B * H,
                 request, sums);
  if (to) launch_threads(launch, "add samples", add_samples_kernel<Real>, H, sums, B, H, to);
}

/// Calls run(formula, zero) with what a request asks for.
template <class Run>
void with_independent(const IndRnnRequest& request, const Run& run) {
  const auto with_formula = [&](auto zero) {
    request.relu ? run(RnnRelu{}, zero) : run(RnnTanh{}, zero);
  };
  request.storage == Storage::f64 ? with_formula(double{}) : with_formula(float{});
}

}  // namespace bppsa::cuda
