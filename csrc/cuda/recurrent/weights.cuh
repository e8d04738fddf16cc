#pragma once
// The recurrent matrix as one thread sees it: G gates, for each the numbers that multiply a vector
// to make this thread's unit.
//
//   forward    w(g, k) = w_hh[g * H + unit][k]     one sum a gate, one vector for all gates
//   backward   w(g, k) = w_hh[g * H + k][unit]     one sum, a vector for each gate

#include "shape.cuh"

namespace bppsa::cuda {

template <typename T, int G, class Shape>
struct Weights {
  static constexpr int kHeldSize = Shape::kHeld > 0 ? Shape::kHeld : 1;

  const T* data;
  int H, gate, in, out;  // strides, of a gate, of k, of a unit
  int slice, pieces;     // this thread's slice; all its pieces
  Pack<T>* stage;        // in shared memory, a thread's own: [piece][gate][thread]
  int staged;            // pieces there, after those in registers
  T held[G][kHeldSize][kVec<T>];

  BPPSA_DEVICE Weights(const T* data, int H, bool transposed, Pack<T>* stage = nullptr,
                       int staged = 0)
      : data(data),
        H(H),
        gate(H * H),
        in(transposed ? H : 1),
        out(transposed ? 1 : H),
        slice(threadIdx.x % Shape::kSplit),
        pieces(padded<T, Shape>(H) / (Shape::kSplit * kVec<T>)),
        stage(stage),
        staged(staged) {
    const int unit = unit_of<Shape>(0);
    for (int i = 0; i < staged; ++i) {
      for (int g = 0; g < G; ++g) {
        Pack<T>& own = staged_pack(i, g);
        for (int e = 0; e < kVec<T>; ++e) own.e[e] = read(g, first(Shape::kHeld + i) + e, unit);
      }
    }
    if constexpr (Shape::kHeld > 0) {
#pragma unroll
      for (int g = 0; g < G; ++g) {
#pragma unroll
        for (int i = 0; i < Shape::kHeld; ++i) {
#pragma unroll
          for (int e = 0; e < kVec<T>; ++e) held[g][i][e] = read(g, first(i) + e, unit);
        }
      }
    }
  }

  BPPSA_DEVICE Pack<T>& staged_pack(int i, int g) const {
    return stage[(i * G + g) * blockDim.x + threadIdx.x];
  }
  BPPSA_DEVICE int first(int piece) const { return (piece * Shape::kSplit + slice) * kVec<T>; }
  BPPSA_DEVICE T read(int g, int k, int unit) const {
    return k < H && unit < H ? data[g * gate + k * in + unit * out] : T(0);
  }

  /// sum[g] becomes sum[g] + Σ_k w(g, k) v[k], the same in all lanes of the unit.
  BPPSA_DEVICE void each(const T* v, int unit, T (&sum)[G]) const {
    T part[G][kVec<T>];
#pragma unroll
    for (int g = 0; g < G; ++g) {
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e) part[g][e] = e == 0 && slice == 0 ? sum[g] : T(0);
    }
    const auto piece = [&](int i, auto weight) {
      const Pack<T> x = *reinterpret_cast<const Pack<T>*>(v + first(i));
#pragma unroll
      for (int g = 0; g < G; ++g) {
#pragma unroll
        for (int e = 0; e < kVec<T>; ++e) part[g][e] += weight(g, e) * x.e[e];
      }
    };
#pragma unroll
    for (int i = 0; i < Shape::kHeld; ++i) {
      piece(i, [&](int g, int e) { return held[g][i][e]; });
    }
    if constexpr (!Shape::kWhole) {
#pragma unroll 2
      for (int i = 0; i < staged; ++i) {
        Pack<T> own[G];
#pragma unroll
        for (int g = 0; g < G; ++g) own[g] = staged_pack(i, g);
        piece(Shape::kHeld + i, [&](int g, int e) { return own[g].e[e]; });
      }
#pragma unroll 4
      for (int i = Shape::kHeld + staged; i < pieces; ++i) {
        piece(i, [&](int g, int e) { return read(g, first(i) + e, unit); });
      }
    }
#pragma unroll
    for (int g = 0; g < G; ++g) sum[g] = over_lanes(added(part[g]));
  }

  /// Σ_g Σ_k w(g, k) v[g * pitch + k] over all lanes of the unit.
  BPPSA_DEVICE T all(const T* v, int pitch, int unit) const {
    T part[kVec<T>];
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e) part[e] = 0;
    const auto piece = [&](int g, int i, auto weight) {
      const Pack<T> x = *reinterpret_cast<const Pack<T>*>(v + g * pitch + first(i));
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e) part[e] += weight(e) * x.e[e];
    };
#pragma unroll
    for (int g = 0; g < G; ++g) {
#pragma unroll
      for (int i = 0; i < Shape::kHeld; ++i) {
        piece(g, i, [&](int e) { return held[g][i][e]; });
      }
    }
    if constexpr (!Shape::kWhole) {
#pragma unroll 2
      for (int i = 0; i < staged; ++i) {
#pragma unroll
        for (int g = 0; g < G; ++g) {
          const Pack<T> own = staged_pack(i, g);
          piece(g, Shape::kHeld + i, [&](int e) { return own.e[e]; });
        }
      }
#pragma unroll 4
      for (int i = Shape::kHeld + staged; i < pieces; ++i) {
#pragma unroll
        for (int g = 0; g < G; ++g) {
          piece(g, i, [&](int e) { return read(g, first(i) + e, unit); });
        }
      }
    }
    return over_lanes(added(part));
  }

 private:
  BPPSA_DEVICE static T added(const T (&part)[kVec<T>]) {
    if constexpr (kVec<T> == 4) return (part[0] + part[1]) + (part[2] + part[3]);
    return part[0] + part[1];
  }
  BPPSA_DEVICE static T over_lanes(T sum) {
#pragma unroll
    for (int d = 1; d < Shape::kSplit; d *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    return sum;
  }
};

}  // namespace bppsa::cuda
