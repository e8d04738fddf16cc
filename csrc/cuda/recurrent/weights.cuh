#pragma once
// The recurrent matrix as one thread sees it: G gates, for each the numbers that multiply its slice
// of a vector to make its unit; or, where units share their lanes (shape.cuh), all of their units.
//
//   forward    w(g, k) = w_hh[g * H + unit][k]     one sum a gate, one vector for all gates
//   backward   w(g, k) = w_hh[g * H + k][unit]     one sum, a vector for each gate
//
// A thread's pieces come unit by unit: piece i belongs to the i % kShared-th of the units that
// share, and multiplies the i / kShared-th piece of the slice.

#include "shape.cuh"

namespace bppsa::cuda {

template <typename Real, int G, class Shape>
struct Weights {
  static constexpr int kHeld = Shape::kHeld, kHeldSize = kHeld > 0 ? kHeld : 1;
  static constexpr int kShared = Shape::kShared;
  // Of each sum, parts that do not wait for each other: none where there are many sums.
  static constexpr int kParts = kShared == 1 ? kVec<Real> : 1;
  static constexpr int kUnroll = kShared == 1 ? 4 : 1;

  const Real* data;
  int H, gate, in, out;  // strides, of a gate, of k, of a unit
  int own, slice;        // which of the units that share is this thread's; its slice
  int pieces, staged;    // all its pieces; those in shared memory, after those in registers
  Pack<Real>* stage;     // the latter, a thread's own: [piece][gate][thread]
  Pack<Real> held[G][kHeldSize];

  BPPSA_DEVICE Weights(const Real* data, int H, bool transposed, Pack<Real>* stage = nullptr,
                       int staged = 0)
      : data(data),
        H(H),
        gate(H * H),
        in(transposed ? H : 1),
        out(transposed ? 1 : H),
        own(threadIdx.x / Shape::kSplit % kShared),
        slice(threadIdx.x % Shape::kLanes),
        pieces(padded<Real, Shape>(H) / (Shape::kSplit * kVec<Real>)),
        staged(staged),
        stage(stage) {
    const int unit = unit_of<Shape>(0);
    for (int i = 0; i < staged; ++i) {
      for (int g = 0; g < G; ++g) staged_pack(i, g) = read(g, kHeld + i, unit);
    }
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int g = 0; g < G; ++g) {
#pragma unroll
        for (int i = 0; i < kHeld; ++i) held[g][i] = read(g, i, unit);
      }
    }
  }

  BPPSA_DEVICE Pack<Real>& staged_pack(int i, int g) const {
    return stage[(i * G + g) * blockDim.x + threadIdx.x];
  }
  /// The first number that a piece multiplies.
  BPPSA_DEVICE int first(int piece) const {
    return (piece / kShared * Shape::kLanes + slice) * kVec<Real>;
  }
  /// A piece from memory. Without shared lanes it is that of `unit`.
  BPPSA_DEVICE Pack<Real> read(int g, int piece, int unit) const {
    const int k = first(piece);
    const int j = kShared == 1 ? unit : unit_of<Shape>(0) - own + piece % kShared;
    Pack<Real> pack;
#pragma unroll
    for (int e = 0; e < kVec<Real>; ++e) {
      pack.e[e] = k + e < H && j < H ? data[g * gate + (k + e) * in + j * out] : Real(0);
    }
    return pack;
  }
  BPPSA_DEVICE Pack<Real> of_slice(const Real* v, int piece) const {
    return *reinterpret_cast<const Pack<Real>*>(v + first(piece));
  }

  /// sum[g] becomes sum[g] + Σ_k w(g, k) v[k], the same in all lanes of the unit.
  BPPSA_DEVICE void each(const Real* v, int unit, Real (&sum)[G]) const {
    Real part[G][kShared][kParts];
    const bool starts = threadIdx.x % Shape::kSplit == 0;
#pragma unroll
    for (int g = 0; g < G; ++g) {
#pragma unroll
      for (int q = 0; q < kShared; ++q) {
#pragma unroll
        for (int e = 0; e < kParts; ++e) {
          part[g][q][e] = e == 0 && starts && q == own ? sum[g] : Real(0);
        }
      }
    }
    in_turn<1>(v, 0, unit, [&](int, int q, const Pack<Real>& x, auto weight) {
#pragma unroll
      for (int g = 0; g < G; ++g) {
        const Pack<Real> w = weight(g);
#pragma unroll
        for (int e = 0; e < kVec<Real>; ++e) part[g][q][e % kParts] += w.e[e] * x.e[e];
      }
    });
#pragma unroll
    for (int g = 0; g < G; ++g) sum[g] = handed_over(part[g]);
  }

  /// Σ_g Σ_k w(g, k) v[g * pitch + k] over all lanes of the unit.
  BPPSA_DEVICE Real all(const Real* v, int pitch, int unit) const {
    Real part[kShared][kParts] = {};
    in_turn<G>(v, pitch, unit, [&](int g, int q, const Pack<Real>& x, auto weight) {
      const Pack<Real> w = weight(g);
#pragma unroll
      for (int e = 0; e < kVec<Real>; ++e) part[q][e % kParts] += w.e[e] * x.e[e];
    });
    return handed_over(part);
  }

 private:
  /// Calls use(g, q, x, weight) for every piece and each of kVectors vectors g, `pitch` apart: q is
  /// the unit of those that share, x the numbers that those of weight(gate) multiply.
  template <int kVectors, class Use>
  BPPSA_DEVICE void in_turn(const Real* v, int pitch, int unit, Use use) const {
#pragma unroll
    for (int g = 0; g < kVectors; ++g) {
      Pack<Real> x;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (i % kShared == 0) x = of_slice(v + g * pitch, i);
        use(g, i % kShared, x, [&](int h) { return held[h][i]; });
      }
    }
    if constexpr (!Shape::kWhole) {
      const int end = kHeld + staged;
      by_slice<kVectors>(kHeld, end, v, pitch, [&](int i, int g, int q, const Pack<Real>& x) {
        use(g, q, x, [&](int h) { return staged_pack(i - kHeld, h); });
      });
      by_slice<kVectors>(end, pieces, v, pitch, [&](int i, int g, int q, const Pack<Real>& x) {
        use(g, q, x, [&](int h) { return read(h, i, unit); });
      });
    }
  }
  /// Calls use(i, g, q, x) for pieces begin … end - 1; those of one piece of the slice together.
  template <int kVectors, class Use>
  BPPSA_DEVICE void by_slice(int begin, int end, const Real* v, int pitch, Use use) const {
#pragma unroll kUnroll
    for (int of_one = begin / kShared * kShared; of_one < end; of_one += kShared) {
#pragma unroll
      for (int g = 0; g < kVectors; ++g) {
        const Pack<Real> x = of_slice(v + g * pitch, of_one);
#pragma unroll
        for (int q = 0; q < kShared; ++q) {
          const int i = of_one + q;
          if (kShared == 1 || (i >= begin && i < end)) use(i, g, q, x);
        }
      }
    }
  }

  /// part[q], summed over its parts and over all lanes that share, in the lanes of unit q.
  BPPSA_DEVICE Real handed_over(const Real (&part)[kShared][kParts]) const {
    Real sum[kShared];
#pragma unroll
    for (int q = 0; q < kShared; ++q) sum[q] = added(part[q]);
    // Half of what is left goes to the lanes that want it, and theirs comes back, halving by
    // halving.
#pragma unroll
    for (int half = kShared / 2; half >= 1; half /= 2) {
      const bool upper = (own & half) != 0;
#pragma unroll
      for (int q = 0; q < half; ++q) {
        const Real mine = upper ? sum[q + half] : sum[q], theirs = upper ? sum[q] : sum[q + half];
        sum[q] = mine + __shfl_xor_sync(0xffffffffu, theirs, half * Shape::kSplit);
      }
    }
#pragma unroll
    for (int d = 1; d < Shape::kSplit; d *= 2) {
      sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], d);
    }
    return sum[0];
  }
  BPPSA_DEVICE static Real added(const Real (&part)[kParts]) {
    if constexpr (kParts == 4) return (part[0] + part[1]) + (part[2] + part[3]);
    if constexpr (kParts == 2) return part[0] + part[1];
    return part[0];
  }
};

}  // namespace bppsa::cuda
