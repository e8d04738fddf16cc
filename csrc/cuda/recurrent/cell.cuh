#pragma once
// A cell's formula (cells/cell.h) as a thread of CUDA uses it: for one unit of one sample, with
// what the forward leaves on the tape and the backward reads of it.

#include <type_traits>

#include "../../cells/cell.h"
#include "../device/math.cuh"
#include "shape.cuh"
#include "tape.cuh"

namespace bppsa::cuda {

// What the backward reads at a place: of a cell that keeps nothing its output; of others the slots,
// with one state h before the step, with two c before and after it.
template <typename Real>
struct OutputRead {
  Real output;
};
template <typename Real>
struct SlotsRead {
  Quad<Real> kept;
  Real before;
};
template <typename Real>
struct SlotsAndCRead {
  Quad<Real> kept;
  Real c, before;
};

// And what its gates take of c.
template <typename Real>
struct PeepholesRead {
  Quad<Real> kept;
  Real c, before;
  Quad<Real> p;
};

template <class Formula_, typename Real>
struct Cell : Formula_ {
  using Formula = Formula_;
  using scalar_t = Real;
  static constexpr bool kKeeps = Formula::kKept > 0, kHasC = Formula::kStates == 2;
  static constexpr bool kPeeps = kSeesC<Formula>;
  using Raw = std::conditional_t<
      kPeeps, PeepholesRead<Real>,
      std::conditional_t<kHasC, SlotsAndCRead<Real>,
                         std::conditional_t<kKeeps, SlotsRead<Real>, OutputRead<Real>>>>;
  static_assert(!kKeeps || Formula::kSlots == 4, "a place of the tape has four numbers");

  /// The gate whose weights a slot takes from x and from h; -1: none.
  BPPSA_DEVICE static int input_part(int slot) { return gate_of<typename Formula::FromX>(slot); }
  BPPSA_DEVICE static int recurrent_part(int slot) {
    return gate_of<typename Formula::FromH>(slot);
  }
  /// Whether the input's part of a gate is simply added to the recurrent part.
  BPPSA_DEVICE static bool input_adds_to_sum(int gate) {
    bool adds = false;
#pragma unroll
    for (int slot = 0; slot < Formula::kSlots; ++slot) {
      adds = adds || (recurrent_part(slot) == gate && input_part(slot) == gate);
    }
    return adds;
  }

  /// The state after the step, and the slots to keep, from the sums of each gate: those of the
  /// recurrent part, with the input's part where that is added to them, and the input's part.
  BPPSA_DEVICE static UnitState<Real> step(const Real (&sum)[Formula::kGates],
                                           const Real (&input)[Formula::kGates],
                                           const UnitState<Real>& before, Quad<Real>& kept,
                                           const Real* p = nullptr) {
    Real slot[Formula::kSlots];
#pragma unroll
    for (int s = 0; s < Formula::kSlots; ++s) {
      slot[s] = 0;
      if (recurrent_part(s) >= 0) {
        slot[s] = sum[recurrent_part(s)];
      } else if (input_part(s) >= 0) {
        slot[s] = input[input_part(s)];
      }
    }
    return finish(slot, before, kept, p);
  }
  /// The same from the sum of each slot. p: of a cell with peepholes, the unit's of all gates.
  BPPSA_DEVICE static UnitState<Real> finish(Real (&slot)[Formula::kSlots],
                                             const UnitState<Real>& before, Quad<Real>& kept,
                                             [[maybe_unused]] const Real* p = nullptr) {
    constexpr auto activation = Formula::kActivation;
#pragma unroll
    for (int s = 0; s < Formula::kSlots; ++s) {
      if (activation.of[s] == Activation::sigmoid) slot[s] = sigmoid(slot[s]);
      if (activation.of[s] == Activation::tanh) slot[s] = tanh_of(slot[s]);
    }
    UnitState<Real> after;
    if constexpr (kPeeps) {
      const Real own[4] = {p[0], p[1], p[2], p[3]};
      after = Formula::template step<ScalarMath<Real>>(slot, before, own);
    } else {
      after = Formula::template step<ScalarMath<Real>>(slot, before);
    }
    if constexpr (kKeeps) {
#pragma unroll
      for (int s = 0; s < Formula::kSlots; ++s) kept.e[s] = slot[s];
    }
    return after;
  }

  /// What the backward needs of `unit`, whose place before the step is `before`; start: the first
  /// step of the chain.
  BPPSA_DEVICE static Raw read(const Tape<Real>& tape, int unit, bool start, int64_t before) {
    if constexpr (!kKeeps) {
      return {tape.output[unit]};
    } else if constexpr (!kHasC) {
      return {tape.gates[unit], Tape<Real>::previous(tape.output, tape.h0, start, unit, before)};
    } else {
      Raw raw{tape.gates[unit], tape.c[unit],
              Tape<Real>::previous(tape.c, tape.c0, start, unit, before)};
      if constexpr (kPeeps) raw.p = peepholes(tape.p, tape.H, unit);
      return raw;
    }
  }
  /// The same of kVec units side by side, in pieces of 16 bytes; not at the first step.
  BPPSA_DEVICE static void read_pack(const Tape<Real>& tape, int unit, int64_t before,
                                     Raw (&raw)[kVec<Real>]) {
    const auto pack = [](const Real* at) { return *reinterpret_cast<const Pack<Real>*>(at); };
    if constexpr (!kKeeps) {
      const Pack<Real> h = pack(tape.output + unit);
#pragma unroll
      for (int e = 0; e < kVec<Real>; ++e) raw[e] = {h.e[e]};
    } else if constexpr (!kHasC) {
      const Pack<Real> h = pack(tape.output + before);
#pragma unroll
      for (int e = 0; e < kVec<Real>; ++e) raw[e] = {tape.gates[unit + e], h.e[e]};
    } else {
      const Pack<Real> c = pack(tape.c + unit), old = pack(tape.c + before);
#pragma unroll
      for (int e = 0; e < kVec<Real>; ++e) {
        raw[e] = {tape.gates[unit + e], c.e[e], old.e[e]};
        if constexpr (kPeeps) raw[e].p = peepholes(tape.p, tape.H, unit + e);
      }
    }
  }

  /// What all gates of `unit` take of c: `all` (G, H), null for zeros.
  BPPSA_DEVICE static Quad<Real> peepholes(const Real* all, int H, int unit) {
    Quad<Real> p;
#pragma unroll
    for (int gate = 0; gate < 4; ++gate) p.e[gate] = all ? all[gate * H + unit] : Real(0);
    return p;
  }

  /// All of the backward that can be computed without the gradient.
  BPPSA_DEVICE static auto factors(const Raw& raw) {
    using Math = ScalarMath<Real>;
    if constexpr (!kKeeps) {
      const Real none[Formula::kSlots] = {};
      return Formula::template factors<Math>(none, raw.output, Real(0));
    } else if constexpr (kPeeps) {
      return Formula::template factors<Math>(raw.kept.e, tanh_of(raw.c), raw.before, raw.p.e);
    } else if constexpr (!kHasC) {
      return Formula::template factors<Math>(raw.kept.e, Real(0), raw.before);
    } else {
      return Formula::template factors<Math>(raw.kept.e, tanh_of(raw.c), raw.before);
    }
  }

  /// From the gradient of the state: the gradients of the sums, and what passes the weights by.
  template <class Factors>
  BPPSA_DEVICE static void pull(const Factors& factors, const Real (&g)[Formula::kStates],
                                Real (&d)[Formula::kRows], Real (&past)[Formula::kStates]) {
    Formula::template pull<ScalarMath<Real>>(factors, g, d, past);
    if constexpr (!Formula::kPassesH) past[0] = 0;
  }

 private:
  // From a number's bytes, not from a table in memory: the slot need not be known to the compiler.
  template <class From>
  BPPSA_DEVICE static int gate_of(int slot) {
    constexpr uint32_t gates = bytes_of(From::slots);
    return static_cast<int8_t>(gates >> (8 * slot));
  }
  static BPPSA_TABLE uint32_t bytes_of(const Slots<Formula::kSlots>& slots) {
    uint32_t bytes = 0;
    for (int s = 0; s < Formula::kSlots; ++s) bytes |= (slots.gate[s] & 0xffu) << (8 * s);
    return bytes;
  }
};

}  // namespace bppsa::cuda
