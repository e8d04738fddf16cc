// What the loops of a recurrent layer hand each other.
//
// T steps, B batch, I input, H hidden, P state that is put out (H, or less for an LSTM with a
// projection), G gates of H pre-activations. "Padded" is H or P rounded up, see simd/unit_blocks.h.
// Tensors of the caller have rows of just H or P numbers; everything inside the kernels, and what
// the forward keeps for the backward, is padded.
#pragma once

#include "../requests/recurrent.h"
#include "../simd/rows.h"
#include "../simd/unit_blocks.h"

namespace bppsa::BPPSA_ISA {

// A cell's formula (cells/cell.h) for one type of numbers.
template <class Formula, typename T_>
struct CellOf : Formula {
  using T = T_;
};

// The weights as a cell's forward reads them, see packed_weights.h.
template <typename T>
struct ForwardWeights {
  int64_t I, P, H, padded;
  const T* x;     // I rows of all slots, in panels
  const T* h;     // P rows of all slots, in panels
  const T* bias;  // all slots
};

// One step of the forward for n samples.
template <typename T>
struct ForwardStep {
  int64_t n;
  ConstRows<T> x;       // inputs (I), or
  ConstRows<T> x_part;  // their part of the pre-activations, if computed before: FromX's columns
  ConstRows<T> h;       // the state before the step (P)
  ConstRows<T> before;  // what the formula takes of it, padded: c of a cell with two states, else h
  Rows<T> gates;        // result: the slots as the cell keeps them
  Rows<T> c_next;       // result, padded; may be c
  Rows<T> kept_c;       // result: c once more, or null
  Rows<T> out;          // result: the state after the step, padded; before the projection
  Rows<T> output;       // result: the state once more, H numbers a row, or null
};

// One step of the backward for n rows of gradients: samples (each with its own step kept), or the
// rows of a product of Jacobians (all with the same, ld = 0).
template <typename T>
struct BackwardStep {
  int64_t n;
  ConstRows<T> g;       // g_t: dL/dh_t (padded P), then, for an LSTM, dL/dc_t (padded H)
  ConstRows<T> kept;    // by the forward
  ConstRows<T> h;       // h_t (P)
  ConstRows<T> h_prev;  // h_{t-1} (P)
  ConstRows<T> c_prev;  // c_{t-1}: c_width numbers a row
  int64_t c_width;      // H or padded
  ConstRows<T> direct;  // u_{t-1} (P)
  Rows<T> d;            // result: gradients of the pre-activations, padded, see the cell
  Rows<T> out;          // result: g_{t-1}
  T* scratch;           // n x padded H
};

// The pointers of one layer, typed.
template <typename T>
struct Layer {
  const RecurrentRequest& request;
  int64_t steps, B, I, H, P;
  int64_t padded, padded_P;
  const T *output, *kept_data;
  const T *w_ih, *w_hh, *b_ih, *b_hh, *w_hr;

  template <class Request>
  explicit Layer(const Request& request)
      : request(request),
        steps(request.T),
        B(request.B),
        I(request.I),
        H(request.H),
        P(request.P),
        padded(padded_units<T>(request.H)),
        padded_P(padded_units<T>(request.P)),
        output(static_cast<const T*>(request.output)),
        kept_data(static_cast<const T*>(request.kept)),
        w_ih(static_cast<const T*>(request.w_ih)),
        w_hh(static_cast<const T*>(request.w_hh)),
        b_ih(static_cast<const T*>(request.b_ih)),
        b_hh(static_cast<const T*>(request.b_hh)),
        w_hr(static_cast<const T*>(request.w_hr)) {}

  // Step t = 1 ... T takes x(t) and the state t - 1 to the state t.
  ConstRows<T> x(int64_t t, int64_t b) const {
    const T* first = static_cast<const T*>(request.x);
    return {first + (t - 1) * request.x_stride[0] + b * request.x_stride[1], request.x_stride[1]};
  }
  // Of what the forward puts out: its place in the output.
  int64_t output_at(int64_t t, int64_t b) const { return (t - 1) * request.output_step + b * P; }
  ConstRows<T> h(int64_t t, int64_t b) const {
    if (t > 0) return {output + output_at(t, b), P};
    return ConstRows<T>{static_cast<const T*>(request.h0), P}.from(b);
  }
  // What the forward kept of step t: all that the cell wants, an LSTM's c alone, or nothing.
  int64_t kept_at(int64_t t, int64_t b) const { return ((t - 1) * B + b) * request.kept_width; }
  ConstRows<T> kept(int64_t t, int64_t b) const {
    if (!request.kept_width) return {};
    return {kept_data + kept_at(t, b), request.kept_width};
  }
  // An LSTM's c_t, where it was kept: the last padded units of a row.
  ConstRows<T> kept_c(int64_t t, int64_t b) const {
    const ConstRows<T> row = kept(t, b);
    return {row ? row.data + row.ld - padded : nullptr, row.ld};
  }
  ConstRows<T> c(int64_t t, int64_t b) const {
    if (t > 0) return kept_c(t, b);
    return ConstRows<T>{static_cast<const T*>(request.c0), H}.from(b);
  }
  int64_t c_width(int64_t t) const { return t > 0 ? padded : H; }
};

}  // namespace bppsa::BPPSA_ISA
