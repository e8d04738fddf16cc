// A cell is a formula: what one hidden unit does in one step, forwards and backwards, once the
// weights have been multiplied. It is the same for the CPU and for CUDA: V is a vector of units or
// the number of one; Math is what V has beside arithmetic (tanh, sigmoid, select, reciprocal;
// simd/activations.h, cuda/device/math.cuh). Formulas include nothing but this file, or another
// formula.
//
// A cell offers
//
//   kGates, kStates      as its row in cells/list.h
//   kSlots               sums of products with the weights, of which each becomes one number
//   FromX, FromH         the gate whose weights a slot takes from x and from h
//   kActivation          what becomes of a slot's sum before `step`
//   kKept                blocks of units that the forward keeps: the slots after `step`, then c
//   step<Math>(slot, before)
//                        the state after the step; `slot` becomes what is kept. A cell with one
//                        state is given h before the step, one with two states c alone
//   factors<Math>(slot, output, before)
//                        all of the backward that can be computed without the gradient. A cell that
//                        keeps nothing is given its output, one with two states tanh(c_t) as the
//                        output and c_{t-1}, others h_{t-1}
//   pull<Math>(factors, g, d, past)
//                        from the gradient of the state: the gradients of the sums, in rows, and
//                        what passes the weights by on its way to the state before
//   kRows                numbers of d; the first kGates go with W_ih, those from kFirstRecurrentRow
//                        on with W_hh
//   input_gate(row)      the gate of W_ih that one of the first kGates rows of d goes with
//   kPassesH             whether past[0] is anything; if not it is left unset
//   tanh_c<Math>(slot, h), unprojected(slot, tanh_c)
//                        with two states: tanh(c_t) of what was kept and shown, and h_t from it
//
//   kPeepholes           if there, with two states: gates see c, each unit its own, and b_hh is no
//   bias
//                        but the vectors p by which they do. `step` and `factors` are given those
//                        of all gates as a last argument
//
// A cell that keeps anything has four slots, which fill a vector of any width, and four rows of d.
// With fewer gates a spare slot takes nothing, or some gate's sum that is not read, and a row of d
// is there twice. What `step` leaves in the slots does not depend on the state before it, or, with
// peepholes, on c alone: a backward that computes the slots again need not have more.
#pragma once

// Where formulas land: in the namespace of an instruction set (simd/isa.h), or in that of CUDA.
#ifdef BPPSA_ISA
#define BPPSA_BACKEND BPPSA_ISA
#define BPPSA_FORMULA inline __attribute__((always_inline))
#define BPPSA_TABLE constexpr
#else
#define BPPSA_BACKEND cuda
#define BPPSA_FORMULA __device__ __forceinline__
#define BPPSA_TABLE __host__ __device__ constexpr
#endif

namespace bppsa::BPPSA_BACKEND {

template <class Cell>
constexpr bool kSeesC = requires { Cell::kPeepholes; };

enum class Activation { none, sigmoid, tanh };

template <int kSlots>
struct Activations {
  Activation of[kSlots];

  constexpr Activation operator[](int slot) const { return of[slot]; }
};

// Which gate's weights a slot takes; -1: none.
template <int kSlots>
struct Slots {
  int gate[kSlots];

  // Of the first `slots`.
  constexpr int used(int slots = kSlots) const {
    int n = 0;
    for (int i = 0; i < slots; ++i) n += gate[i] >= 0;
    return n;
  }
  constexpr bool all_used() const { return used() == kSlots; }
};

template <class V>
struct UnitState {
  V h, c;
};

}  // namespace bppsa::BPPSA_BACKEND
