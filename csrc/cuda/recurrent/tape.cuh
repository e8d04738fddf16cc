#pragma once
// What the forward keeps for the backward.
//
// A *place* is (t * B + b) * H + j, for step t, sample b, unit j. At each place there is the unit's
// output; for GRU and LSTM four numbers more, side by side; for LSTM the cell state.

#include "../device/numbers.cuh"

namespace bppsa::cuda {

template <typename Real>
struct Quad {
  Real e[4];
};
template <>
struct alignas(16) Quad<float> {
  float e[4];
};
template <>
struct alignas(16) Quad<double> {
  double e[4];
};

template <typename Real>
struct Tape {
  const Real* output;       // h at every place
  const Quad<Real>* gates;  // null for RNN
  const Real* c;            // null but for LSTM
  const Real *h0, *c0;      // (B, H), null for zeros
  const Real* p;            // of a cell with peepholes, all gates (G, H); or null for zeros
  int H;

  /// Whether pieces of 16 bytes can be read where a place is a multiple of kVec.
  bool in_pieces() const {
    return reinterpret_cast<uintptr_t>(output) % 16 == 0 &&
           reinterpret_cast<uintptr_t>(c) % 16 == 0;
  }

  /// The tape seen from `place`, with `initial` the same unit's place in (B, H).
  BPPSA_BOTH Tape from(int64_t place, int64_t initial) const {
    Tape tape{output + place,
              gates ? gates + place : nullptr,
              c ? c + place : nullptr,
              h0 ? h0 + initial : nullptr,
              c0 ? c0 + initial : nullptr,
              p,
              H};
    return tape;
  }
  /// kKeeps, kHasC: whether there are gates, and cell states.
  template <bool kKeeps, bool kHasC>
  BPPSA_DEVICE void move(int64_t places) {
    output += places;
    if constexpr (kKeeps) gates += places;
    if constexpr (kHasC) c += places;
  }

  /// h or c of `unit` before the step the tape is at; `before` is its place there.
  BPPSA_DEVICE static Real previous(const Real* all, const Real* initial, bool start, int unit,
                                    int64_t before) {
    if (!start) return all[before];
    return initial ? initial[unit] : Real(0);
  }
};

}  // namespace bppsa::cuda
