#pragma once
// The recurrent cells: what one hidden unit does in one step, forwards and backwards, once the
// recurrent matrix has been multiplied.
//
// A *place* is (t * B + b) * H + j, for step t, sample b, unit j. The forward keeps on a Tape what
// the backward needs at each place: its output; for GRU and LSTM four numbers more, side by side;
// for LSTM the cell state. Per cell:
//   kGates       rows of w_hh for each unit
//   kRows        gate gradients for each unit that the parameter gradients need (GRU: n twice, as
//                the input and as the recurrent matrix see it)
//   kStates      numbers of the state: h, or h and c
//   folds(g)     whether the input's part of gate g is simply added to the recurrent part
//   step(…)      the new state, and the four numbers to keep, from the sums
//   read(…)      what the backward needs at a place, from memory
//   read_pack(…) the same at kVec places side by side, in pieces of 16 bytes; not for the first
//   step factors(…)   what must be computed from that before the gradient is known pull(…) from the
//   gradient of the state: the gradients of the sums that the recurrent matrix
//                made, and what passes it by on its way to the state before
//   rows(…)      the kRows gate gradients
// and, where kKeeps, to compute the kept numbers again:
//   recurrent_part(k), input_part(k)   the gate whose recurrent and whose input's part the sum
//                behind kept number k has; -1: none

#include "../math.cuh"
#include "shape.cuh"
#include "tape.cuh"

namespace bppsa::cuda {

enum class Phi { tanh, relu };

template <typename Real, Phi phi>
struct RnnCell {
  using scalar_t = Real;
  static constexpr int kGates = 1, kRows = 1, kStates = 1;
  static constexpr bool kKeeps = false;
  BPPSA_BOTH static constexpr bool folds(int) { return true; }

  BPPSA_DEVICE static UnitState<Real> step(const Real (&sum)[1], const Real (&)[1], UnitState<Real>,
                                           Quad<Real>&) {
    // As torch's relu: a NaN stays a NaN.
    if constexpr (phi == Phi::relu) return {sum[0] < 0 ? Real(0) : sum[0], Real(0)};
    return {tanh_of(sum[0]), Real(0)};
  }

  struct Raw {
    Real h;
  };
  struct Factors {
    Real slope;  // tanh: 1 - h²; relu: h
  };
  BPPSA_DEVICE static Raw read(const Tape<Real>& tape, int unit, bool, int64_t) {
    return {tape.output[unit]};
  }
  BPPSA_DEVICE static void read_pack(const Tape<Real>& tape, int unit, int64_t,
                                     Raw (&raw)[kVec<Real>]) {
    const Pack<Real> h = *reinterpret_cast<const Pack<Real>*>(tape.output + unit);
#pragma unroll
    for (int e = 0; e < kVec<Real>; ++e) raw[e] = {h.e[e]};
  }
  BPPSA_DEVICE static Factors factors(const Raw& raw) {
    return {phi == Phi::tanh ? 1 - raw.h * raw.h : raw.h};
  }
  BPPSA_DEVICE static void pull(const Factors& f, const Real (&g)[1], Real (&p)[1],
                                Real (&past)[1]) {
    // For relu a choice, not a product, as in torch: 0 · inf would make a NaN.
    p[0] = phi == Phi::tanh ? f.slope * g[0] : f.slope <= 0 ? Real(0) : g[0];
    past[0] = 0;
  }
  BPPSA_DEVICE static void rows(const Factors&, const Real (&)[1], const Real (&p)[1],
                                Real (&row)[1]) {
    row[0] = p[0];
  }
};

template <typename Real>
using RnnTanh = RnnCell<Real, Phi::tanh>;
template <typename Real>
using RnnRelu = RnnCell<Real, Phi::relu>;

// Gates r, z, n in torch's order; q = W_hn h + b_hn. Kept: r, z, n, q.
template <typename Real>
struct Gru {
  using scalar_t = Real;
  static constexpr int kGates = 3, kRows = 4, kStates = 1;
  static constexpr bool kKeeps = true;
  BPPSA_BOTH static constexpr bool folds(int g) { return g < 2; }
  // The sums behind r, z, n, q; that behind n without r * q.
  BPPSA_BOTH static constexpr int recurrent_part(int k) { return k < 2 ? k : k == 3 ? 2 : -1; }
  BPPSA_BOTH static constexpr int input_part(int k) { return k < 3 ? k : -1; }

  BPPSA_DEVICE static UnitState<Real> step(const Real (&sum)[3], const Real (&input)[3],
                                           UnitState<Real> before, Quad<Real>& kept) {
    const Real r = sigmoid(sum[0]), z = sigmoid(sum[1]), q = sum[2];
    const Real n = tanh_of(input[2] + r * q);
    kept = {r, z, n, q};
    return {n + z * (before.h - n), Real(0)};
  }

  struct Raw {
    Quad<Real> kept;
    Real before;
  };
  struct Factors {
    Real to_r, to_z, to_n, to_q;  // from the gradient of h to those of the gates and of q
    Real z;
  };
  BPPSA_DEVICE static Raw read(const Tape<Real>& tape, int unit, bool start, int64_t before) {
    return {tape.gates[unit], Tape<Real>::previous(tape.output, tape.h0, start, unit, before)};
  }
  BPPSA_DEVICE static void read_pack(const Tape<Real>& tape, int unit, int64_t before,
                                     Raw (&raw)[kVec<Real>]) {
    const Pack<Real> h = *reinterpret_cast<const Pack<Real>*>(tape.output + before);
#pragma unroll
    for (int e = 0; e < kVec<Real>; ++e) raw[e] = {tape.gates[unit + e], h.e[e]};
  }
  BPPSA_DEVICE static Factors factors(const Raw& raw) {
    const Real r = raw.kept.e[0], z = raw.kept.e[1], n = raw.kept.e[2], q = raw.kept.e[3];
    const Real to_n = (1 - z) * (1 - n * n);
    return {to_n * q * (r * (1 - r)), (raw.before - n) * (z * (1 - z)), to_n, to_n * r, z};
  }
  BPPSA_DEVICE static void pull(const Factors& f, const Real (&g)[1], Real (&p)[3],
                                Real (&past)[1]) {
    p[0] = f.to_r * g[0];
    p[1] = f.to_z * g[0];
    p[2] = f.to_q * g[0];
    past[0] = f.z * g[0];
  }
  /// n, r, z, q: the first three belong to w_ih, the last three to w_hh.
  BPPSA_DEVICE static void rows(const Factors& f, const Real (&g)[1], const Real (&p)[3],
                                Real (&row)[4]) {
    row[0] = f.to_n * g[0];
    row[1] = p[0];
    row[2] = p[1];
    row[3] = p[2];
  }
};

// Gates i, f, g, o in torch's order. Kept: the gates; and c.
template <typename Real>
struct Lstm {
  using scalar_t = Real;
  static constexpr int kGates = 4, kRows = 4, kStates = 2;
  static constexpr bool kKeeps = true;
  BPPSA_BOTH static constexpr bool folds(int) { return true; }
  BPPSA_BOTH static constexpr int recurrent_part(int k) { return k; }
  BPPSA_BOTH static constexpr int input_part(int k) { return k; }

  BPPSA_DEVICE static UnitState<Real> step(const Real (&sum)[4], const Real (&)[4],
                                           UnitState<Real> before, Quad<Real>& kept) {
    const Real i = sigmoid(sum[0]), f = sigmoid(sum[1]), g = tanh_of(sum[2]), o = sigmoid(sum[3]);
    kept = {i, f, g, o};
    const Real c = f * before.c + i * g;
    return {o * tanh_of(c), c};
  }

  struct Raw {
    Quad<Real> kept;
    Real c, before;
  };
  struct Factors {
    Real to_i, to_f, to_g, f;  // from the gradient of c
    Real to_o, to_c;           // from the gradient of h
  };
  BPPSA_DEVICE static Raw read(const Tape<Real>& tape, int unit, bool start, int64_t before) {
    return {tape.gates[unit], tape.c[unit],
            Tape<Real>::previous(tape.c, tape.c0, start, unit, before)};
  }
  BPPSA_DEVICE static void read_pack(const Tape<Real>& tape, int unit, int64_t before,
                                     Raw (&raw)[kVec<Real>]) {
    const Pack<Real> c = *reinterpret_cast<const Pack<Real>*>(tape.c + unit);
    const Pack<Real> old = *reinterpret_cast<const Pack<Real>*>(tape.c + before);
#pragma unroll
    for (int e = 0; e < kVec<Real>; ++e) raw[e] = {tape.gates[unit + e], c.e[e], old.e[e]};
  }
  BPPSA_DEVICE static Factors factors(const Raw& raw) {
    const Real i = raw.kept.e[0], f = raw.kept.e[1], g = raw.kept.e[2], o = raw.kept.e[3];
    const Real y = tanh_of(raw.c);
    return {g * (i * (1 - i)), raw.before * (f * (1 - f)), i * (1 - g * g), f, y * (o * (1 - o)),
            o * (1 - y * y)};
  }
  BPPSA_DEVICE static void pull(const Factors& f, const Real (&g)[2], Real (&p)[4],
                                Real (&past)[2]) {
    const Real to_c = g[1] + f.to_c * g[0];
    p[0] = f.to_i * to_c;
    p[1] = f.to_f * to_c;
    p[2] = f.to_g * to_c;
    p[3] = f.to_o * g[0];
    past[0] = 0;
    past[1] = f.f * to_c;
  }
  BPPSA_DEVICE static void rows(const Factors&, const Real (&)[2], const Real (&p)[4],
                                Real (&row)[4]) {
    for (int k = 0; k < 4; ++k) row[k] = p[k];
  }
};

}  // namespace bppsa::cuda
