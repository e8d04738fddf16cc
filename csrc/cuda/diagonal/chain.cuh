#pragma once
// Diagonal chains: B*H chains of one number each that share nothing.
//   g[T] = u[T]        g[i] = decay[i] g[i+1] + u[i],   i = T-1 … 0, for each element
//
// A thread walks one element of one segment; threads of a warp have neighbouring elements, so that
// a step of a warp reads whole lines where the state is contiguous in memory. A walk waits for
// memory, not for arithmetic: each thread has kStepsAhead steps in flight. Where there are too few
// elements for the machine, segments of time make up for them (chunked, Blelloch), as in the dense
// scans.

#include "../device/numbers.cuh"

namespace bppsa::cuda {

// Any strides, in elements; negative where time runs backwards.
template <typename scalar_t>
struct Elements {
  scalar_t* data;
  int64_t step, sample, state;

  BPPSA_BOTH Elements from_element(int64_t b, int64_t h) const {
    return {data + b * sample + h * state, step, sample, state};
  }
  BPPSA_BOTH scalar_t& operator()(int64_t i) const { return data[i * step]; }
};

template <typename scalar>
struct DiagonalChain {
  using scalar_t = scalar;
  using acc_t = typename Accumulator<scalar_t>::type;

  Elements<const scalar_t> decay, grad;
  Elements<scalar_t> out;
  int64_t T, H;
  int64_t first, count;  // the elements that are worked on, of B*H

  BPPSA_BOTH DiagonalChain from_element(int64_t e) const {
    const int64_t b = (first + e) / H, h = (first + e) % H;
    return {decay.from_element(b, h), grad.from_element(b, h), out.from_element(b, h), T, 1, 0, 1};
  }
};

constexpr int kStepsAhead = 16;  // in flight for each thread of a walk

/// Calls run(i, decay[i], u[i]) for the steps last-1 … first of an element, in that order.
template <class Chain, class Run>
BPPSA_DEVICE void for_each_step(const Chain& own, int64_t last, int64_t first, const Run& run) {
  using acc_t = typename Chain::acc_t;
  int64_t i = last;
  for (; i - kStepsAhead >= first; i -= kStepsAhead) {
    typename Chain::scalar_t a[kStepsAhead], u[kStepsAhead];
#pragma unroll
    for (int n = 0; n < kStepsAhead; ++n) {
      a[n] = own.decay(i - 1 - n);
      u[n] = own.grad(i - 1 - n);
    }
#pragma unroll
    for (int n = 0; n < kStepsAhead; ++n) {
      run(i - 1 - n, static_cast<acc_t>(a[n]), static_cast<acc_t>(u[n]));
    }
  }
  while (i-- > first) run(i, static_cast<acc_t>(own.decay(i)), static_cast<acc_t>(own.grad(i)));
}

/// Walks an element from g at the end of steps last-1 … first to the g before them. kFinal: these
/// are the true gradients, all but the last of which it writes.
template <bool kFinal, class Chain>
BPPSA_DEVICE typename Chain::acc_t walk_element(const Chain& own, int64_t last, int64_t first,
                                                typename Chain::acc_t g) {
  using acc_t = typename Chain::acc_t;
  for_each_step(own, last, first, [&](int64_t i, acc_t a, acc_t u) {
    if constexpr (kFinal) own.out(i + 1) = static_cast<typename Chain::scalar_t>(g);
    g = a * g + u;
  });
  return g;
}

}  // namespace bppsa::cuda
