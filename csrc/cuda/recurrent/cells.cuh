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

#include "activation.cuh"
#include "shape.cuh"

namespace bppsa::cuda {

template <typename T>
struct Quad {
  T e[4];
};
template <>
struct alignas(16) Quad<float> {
  float e[4];
};
template <>
struct alignas(16) Quad<double> {
  double e[4];
};

template <typename T>
struct UnitState {
  T h, c;
};

template <typename T>
struct Tape {
  const T* output;       // h at every place
  const Quad<T>* gates;  // null for RNN
  const T* c;            // null but for LSTM
  const T *h0, *c0;      // (B, H), null for zeros

  /// Whether pieces of 16 bytes can be read where a place is a multiple of kVec.
  bool in_pieces() const {
    return reinterpret_cast<uintptr_t>(output) % 16 == 0 &&
           reinterpret_cast<uintptr_t>(c) % 16 == 0;
  }

  /// The tape seen from `place`, with `initial` the same unit's place in (B, H).
  BPPSA_DEVICE Tape from(int64_t place, int64_t initial) const {
    Tape tape{output + place, gates ? gates + place : nullptr, c ? c + place : nullptr,
              h0 ? h0 + initial : nullptr, c0 ? c0 + initial : nullptr};
    return tape;
  }
  BPPSA_DEVICE void move(int64_t places) {
    output += places;
    gates += places;
    c += places;
  }

  /// h or c of `unit` before the step the tape is at; `before` is its place there.
  BPPSA_DEVICE static T previous(const T* all, const T* initial, bool start, int unit,
                                 int64_t before) {
    if (!start) return all[before];
    return initial ? initial[unit] : T(0);
  }
};

enum class Phi { tanh, relu };

template <typename T, Phi phi>
struct RnnCell {
  using scalar_t = T;
  static constexpr int kGates = 1, kRows = 1, kStates = 1;
  static constexpr bool kKeeps = false;
  BPPSA_BOTH static constexpr bool folds(int) { return true; }

  BPPSA_DEVICE static UnitState<T> step(const T (&sum)[1], const T (&)[1], UnitState<T>, Quad<T>&) {
    // As torch's relu: a NaN stays a NaN.
    if constexpr (phi == Phi::relu) return {sum[0] < 0 ? T(0) : sum[0], T(0)};
    return {tanh_of(sum[0]), T(0)};
  }

  struct Raw {
    T h;
  };
  struct Factors {
    T slope;  // tanh: 1 - h²; relu: h
  };
  BPPSA_DEVICE static Raw read(const Tape<T>& tape, int unit, bool, int64_t) {
    return {tape.output[unit]};
  }
  BPPSA_DEVICE static void read_pack(const Tape<T>& tape, int unit, int64_t, Raw (&raw)[kVec<T>]) {
    const Pack<T> h = *reinterpret_cast<const Pack<T>*>(tape.output + unit);
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e) raw[e] = {h.e[e]};
  }
  BPPSA_DEVICE static Factors factors(const Raw& raw) {
    return {phi == Phi::tanh ? 1 - raw.h * raw.h : raw.h};
  }
  BPPSA_DEVICE static void pull(const Factors& f, const T (&g)[1], T (&p)[1], T (&past)[1]) {
    // For relu a choice, not a product, as in torch: 0 · inf would make a NaN.
    p[0] = phi == Phi::tanh ? f.slope * g[0] : f.slope <= 0 ? T(0) : g[0];
    past[0] = 0;
  }
  BPPSA_DEVICE static void rows(const Factors&, const T (&)[1], const T (&p)[1], T (&row)[1]) {
    row[0] = p[0];
  }
};

// Gates r, z, n in torch's order; q = W_hn h + b_hn. Kept: r, z, n, q.
template <typename T>
struct GruCell {
  using scalar_t = T;
  static constexpr int kGates = 3, kRows = 4, kStates = 1;
  static constexpr bool kKeeps = true;
  BPPSA_BOTH static constexpr bool folds(int g) { return g < 2; }
  // The sums behind r, z, n, q; that behind n without r * q.
  BPPSA_BOTH static constexpr int recurrent_part(int k) { return k < 2 ? k : k == 3 ? 2 : -1; }
  BPPSA_BOTH static constexpr int input_part(int k) { return k < 3 ? k : -1; }

  BPPSA_DEVICE static UnitState<T> step(const T (&sum)[3], const T (&input)[3], UnitState<T> before,
                                        Quad<T>& kept) {
    const T r = sigmoid(sum[0]), z = sigmoid(sum[1]), q = sum[2];
    const T n = tanh_of(input[2] + r * q);
    kept = {r, z, n, q};
    return {n + z * (before.h - n), T(0)};
  }

  struct Raw {
    Quad<T> kept;
    T before;
  };
  struct Factors {
    T to_r, to_z, to_n, to_q;  // from the gradient of h to those of the gates and of q
    T z;
  };
  BPPSA_DEVICE static Raw read(const Tape<T>& tape, int unit, bool start, int64_t before) {
    return {tape.gates[unit], Tape<T>::previous(tape.output, tape.h0, start, unit, before)};
  }
  BPPSA_DEVICE static void read_pack(const Tape<T>& tape, int unit, int64_t before,
                                     Raw (&raw)[kVec<T>]) {
    const Pack<T> h = *reinterpret_cast<const Pack<T>*>(tape.output + before);
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e) raw[e] = {tape.gates[unit + e], h.e[e]};
  }
  BPPSA_DEVICE static Factors factors(const Raw& raw) {
    const T r = raw.kept.e[0], z = raw.kept.e[1], n = raw.kept.e[2], q = raw.kept.e[3];
    const T to_n = (1 - z) * (1 - n * n);
    return {to_n * q * (r * (1 - r)), (raw.before - n) * (z * (1 - z)), to_n, to_n * r, z};
  }
  BPPSA_DEVICE static void pull(const Factors& f, const T (&g)[1], T (&p)[3], T (&past)[1]) {
    p[0] = f.to_r * g[0];
    p[1] = f.to_z * g[0];
    p[2] = f.to_q * g[0];
    past[0] = f.z * g[0];
  }
  /// n, r, z, q: the first three belong to w_ih, the last three to w_hh.
  BPPSA_DEVICE static void rows(const Factors& f, const T (&g)[1], const T (&p)[3], T (&row)[4]) {
    row[0] = f.to_n * g[0];
    row[1] = p[0];
    row[2] = p[1];
    row[3] = p[2];
  }
};

// Gates i, f, g, o in torch's order. Kept: the gates; and c.
template <typename T>
struct LstmCell {
  using scalar_t = T;
  static constexpr int kGates = 4, kRows = 4, kStates = 2;
  static constexpr bool kKeeps = true;
  BPPSA_BOTH static constexpr bool folds(int) { return true; }
  BPPSA_BOTH static constexpr int recurrent_part(int k) { return k; }
  BPPSA_BOTH static constexpr int input_part(int k) { return k; }

  BPPSA_DEVICE static UnitState<T> step(const T (&sum)[4], const T (&)[4], UnitState<T> before,
                                        Quad<T>& kept) {
    const T i = sigmoid(sum[0]), f = sigmoid(sum[1]), g = tanh_of(sum[2]), o = sigmoid(sum[3]);
    kept = {i, f, g, o};
    const T c = f * before.c + i * g;
    return {o * tanh_of(c), c};
  }

  struct Raw {
    Quad<T> kept;
    T c, before;
  };
  struct Factors {
    T to_i, to_f, to_g, f;  // from the gradient of c
    T to_o, to_c;           // from the gradient of h
  };
  BPPSA_DEVICE static Raw read(const Tape<T>& tape, int unit, bool start, int64_t before) {
    return {tape.gates[unit], tape.c[unit],
            Tape<T>::previous(tape.c, tape.c0, start, unit, before)};
  }
  BPPSA_DEVICE static void read_pack(const Tape<T>& tape, int unit, int64_t before,
                                     Raw (&raw)[kVec<T>]) {
    const Pack<T> c = *reinterpret_cast<const Pack<T>*>(tape.c + unit);
    const Pack<T> old = *reinterpret_cast<const Pack<T>*>(tape.c + before);
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e) raw[e] = {tape.gates[unit + e], c.e[e], old.e[e]};
  }
  BPPSA_DEVICE static Factors factors(const Raw& raw) {
    const T i = raw.kept.e[0], f = raw.kept.e[1], g = raw.kept.e[2], o = raw.kept.e[3];
    const T y = tanh_of(raw.c);
    return {g * (i * (1 - i)), raw.before * (f * (1 - f)), i * (1 - g * g), f, y * (o * (1 - o)),
            o * (1 - y * y)};
  }
  BPPSA_DEVICE static void pull(const Factors& f, const T (&g)[2], T (&p)[4], T (&past)[2]) {
    const T to_c = g[1] + f.to_c * g[0];
    p[0] = f.to_i * to_c;
    p[1] = f.to_f * to_c;
    p[2] = f.to_g * to_c;
    p[3] = f.to_o * g[0];
    past[0] = 0;
    past[1] = f.f * to_c;
  }
  BPPSA_DEVICE static void rows(const Factors&, const T (&)[2], const T (&p)[4], T (&row)[4]) {
    for (int k = 0; k < 4; ++k) row[k] = p[k];
  }
};

}  // namespace bppsa::cuda
