// A segment of the chain as one affine map, and the rule by which it is trusted.
//
// The map of steps (lo, hi] takes g_hi to g_lo: g_lo = g_hi P + s, P (H x H, for row
// vectors) the product of the segment's Jacobians and s the direct gradients carried to its
// left end. It is applied where trust.h trusts it.
#pragma once

#include "trust.h"
#include "walk.h"

namespace bppsa::BPPSA_ISA {

// Largest magnitude; a NaN anywhere gives a NaN.
template <typename T>
inline T max_abs(const T* p, int64_t n) {
  T m = 0;
  for (int64_t i = 0; i < n; ++i) {
    const T a = p[i] < 0 ? -p[i] : p[i];
    m = a > m || a != a ? a : m;
    if (m != m) return m;
  }
  return m;
}

template <typename T>
inline bool finite(const T* p, int64_t n) {
  return max_abs(p, n) < T(__builtin_inf());
}

template <typename T>
struct Segment {
  T* product;  // H x H
  T* shift;    // H
  T size;      // max |product|, or NaN if the map is not finite
};

template <typename T>
inline void measure(Segment<T>& segment, int64_t H) {
  segment.size = finite(segment.shift, H) ? max_abs(segment.product, H * H) : T(__builtin_nanf(""));
}

// Scratch of a composition: a walk of one sample, products of H rows.
template <class Chain>
struct Composer {
  Walker<Chain> walker;
  Buffer<typename Chain::T> spare;
  Buffer<typename Chain::T> scratch;

  explicit Composer(const Chain& chain)
      : walker(chain, 1),
        spare(chain.state_width() * chain.state_width()),
        scratch(chain.scratch(chain.state_width())) {}
};

// Composes steps (lo, hi] of sample b.
template <class Chain, typename T = typename Chain::T>
void compose_steps(const Chain& chain, int64_t hi, int64_t lo, int64_t b, Composer<Chain>& composer,
                   Segment<T>& segment) {
  const int64_t H = chain.state_width();
  Walker<Chain>& walker = composer.walker;
  T* from = segment.product;
  T* to = composer.spare.data;
  chain.materialise(hi, b, from);
  for (int64_t t = hi - 1; t > lo; --t) {
    chain.compose(t, b, H, from, to, composer.scratch.data);
    T* swap = from;
    from = to;
    to = swap;
  }
  if (from != segment.product) std::memcpy(segment.product, from, H * H * sizeof(T));
  std::memset(walker.g, 0, H * sizeof(T));
  walker.template walk<false>(chain, hi, lo, b, 1);
  std::memcpy(segment.shift, walker.g, H * sizeof(T));
  measure(segment, H);
}

// out = g P + s where that can be trusted, by the steps (lo, hi] otherwise. One sample.
template <class Chain, typename T = typename Chain::T>
void cross(const Chain& chain, const Segment<T>& segment, int64_t hi, int64_t lo, int64_t b,
           const T* g, T* out, Walker<Chain>& walker) {
  const int64_t H = chain.state_width();
  if (segment.size <= TrustedMatrix<T>::large &&
      (segment.size >= TrustedMatrix<T>::tiny || max_abs(g, H) <= 1)) {
    chain.product(1, g, segment.product, segment.shift, out);
    if (finite(out, H)) return;
  }
  std::memcpy(walker.g, g, H * sizeof(T));
  walker.template walk<false>(chain, hi, lo, b, 1);
  std::memcpy(out, walker.g, H * sizeof(T));
}

}  // namespace bppsa::BPPSA_ISA
