// The walk: from g_hi down to g_lo, step by step. The linear scan is one, the others are built of
// them.
//
// A chain is what a scan walks. Every chain offers (samples [b, b + n), steps t = 1 ... steps(),
// all vectors and products of the compute type T, rows state_width() apart):
//
//   last(b, n, g)                  g = g_T, the direct gradient of the last state
//   step<Final>(t, b, n, g, out, scratch)
//                                  out = J_t^T g + u_{t-1}; Final: g is the true g_t, so keep
//                                  what the caller of the scan wants of it
//   first(b, n, g)                 g is the true g_0
//   materialise(t, b, P)           P = J_t, as a matrix for row vectors: g_{t-1} = g_t P
//   compose(t, b, rows, P, out, scratch)
//                                  out = P J_t, for `rows` rows
//   scratch(n)                     numbers of scratch that the calls above need
//   product(rows, P, Q, u, out)    out = P Q + u (or null), for maps already composed
#pragma once

#include <cstring>

#include "../simd/buffer.h"
#include "../simd/parallel.h"

namespace bppsa::BPPSA_ISA {

// Vectors of one walk over n samples.
template <class Chain>
struct Walker {
  using T = typename Chain::T;
  Buffer<T> memory;
  T* g;
  T* next;
  T* scratch;

  Walker(const Chain& chain, int64_t n)
      : memory(2 * n * chain.state_width() + chain.scratch(n)),
        g(memory.data),
        next(g + n * chain.state_width()),
        scratch(next + n * chain.state_width()) {}

  // On entry g holds g_hi, on return g_lo. Final: these are the true gradients.
  template <bool Final>
  void walk(const Chain& chain, int64_t hi, int64_t lo, int64_t b, int64_t n) {
    // A chain whose steps are too short to be called one by one walks them itself.
    if constexpr (requires { chain.template walk<Final>(hi, lo, b, n, g); }) {
      chain.template walk<Final>(hi, lo, b, n, g);
    } else {
      const auto steps = [&](int64_t samples) __attribute__((always_inline)) {
        for (int64_t t = hi; t > lo; --t) {
          chain.template step<Final>(t, b, samples, g, next, scratch);
          T* swap = g;
          g = next;
          next = swap;
        }
      };
      // A single sample's are short too: a chain may spare them what a known number makes needless.
      if (n == 1)
        steps(1);
      else
        steps(n);
    }
  }
};

// All steps of samples [b, b + n), the true gradients.
template <class Chain>
void walk_samples(const Chain& chain, int64_t b, int64_t n) {
  Walker<Chain> walker(chain, n);
  chain.last(b, n, walker.g);
  walker.template walk<true>(chain, chain.steps(), 0, b, n);
  chain.first(b, n, walker.g);
}

}  // namespace bppsa::BPPSA_ISA
