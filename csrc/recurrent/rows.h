// What the recurrent cells and the loops around them hand each other.
//
// T steps, B batch, I input, H hidden, P state that is put out (H, or less for an LSTM with a
// projection), G blocks of H pre-activations (torch's gate order).
#pragma once

#include "../cpu/kernels.h"
#include "../cpu/tile.h"
#include "../scan/workspace.h"

namespace bppsa::BPPSA_ISA {

// Rows of numbers in memory, `ld` apart; ld = 0 repeats one row. Null stands for zeros.
template <typename T>
struct Rows {
  T* data = nullptr;
  int64_t ld = 0;

  T* operator[](int64_t r) const { return data + r * ld; }
  Rows from(int64_t r) const { return {data ? data + r * ld : nullptr, ld}; }
  explicit operator bool() const { return data != nullptr; }
};

template <typename T>
using ConstRows = Rows<const T>;

// The weights as a cell's forward reads them: transposed, so that a row holds one input's part of
// all pre-activations, and in panels; biases added up where they only ever occur as a sum.
template <typename T>
struct ForwardWeights {
  int64_t I, H, P;
  const T* x;        // I x GH
  const T* h;        // P x GH
  const T* bias;     // GH
  const T* bias_q;   // GRU: H, the bias inside the reset gate's product
  const T* is_tanh;  // LSTM: GH, 1 where a pre-activation goes through tanh, 0 through sigmoid
};

// One step of the forward for n samples.
template <typename T>
struct ForwardStep {
  int64_t n;
  ConstRows<T> x;       // inputs (I), or
  ConstRows<T> x_part;  // their part of the pre-activations (GH), if that was computed before
  ConstRows<T> h, c;    // the state before the step
  Rows<T> kept;         // what the backward wants to know of the step, if anything
  Rows<T> c_next;       // LSTM
  Rows<T> out;          // the state after the step; before the projection, if there is one
  T* scratch;           // n x GH
};

// One step of the backward for n rows of gradients: samples (each with its own step kept), or the
// rows of a product of Jacobians (all with the same, ld = 0).
template <typename T>
struct BackwardStep {
  int64_t n;
  ConstRows<T> g;       // g_t: dL/dh_t (P), then, for an LSTM, dL/dc_t (H)
  ConstRows<T> kept;    // by the forward
  ConstRows<T> h;       // h_t
  ConstRows<T> h_prev;  // h_{t-1}
  ConstRows<T> c_prev;  // c_{t-1}
  ConstRows<T> direct;  // u_{t-1} (P)
  Rows<T> d;            // result: gradients of the pre-activations, see the cell
  Rows<T> out;          // result: g_{t-1}
  T* scratch;           // n x H
};

// The pointers of one layer, typed.
template <typename T>
struct Layer {
  const RecurrentArgs& args;
  int64_t steps, B, I, H, P;
  const T *w_ih, *w_hh, *b_ih, *b_hh, *w_hr;

  explicit Layer(const RecurrentArgs& args)
      : args(args),
        steps(args.T),
        B(args.B),
        I(args.I),
        H(args.H),
        P(args.P),
        w_ih(static_cast<const T*>(args.w_ih)),
        w_hh(static_cast<const T*>(args.w_hh)),
        b_ih(static_cast<const T*>(args.b_ih)),
        b_hh(static_cast<const T*>(args.b_hh)),
        w_hr(static_cast<const T*>(args.w_hr)) {}

  // Step t = 1 ... T takes x(t) and the state t - 1 to the state t.
  ConstRows<T> x(int64_t t, int64_t b) const {
    const T* first = static_cast<const T*>(args.x);
    return {first + (t - 1) * args.x_stride[0] + b * args.x_stride[1], args.x_stride[1]};
  }
  Rows<T> output(int64_t t, int64_t b) const {
    return {static_cast<T*>(args.output) + (t - 1) * args.output_step + b * P, P};
  }
  ConstRows<T> h(int64_t t, int64_t b) const {
    if (t > 0) return {output(t, b).data, P};
    return ConstRows<T>{static_cast<const T*>(args.h0), P}.from(b);
  }
  // What the forward kept of step t: all that the cell wants, an LSTM's c alone, or nothing.
  Rows<T> kept(int64_t t, int64_t b) const {
    const int64_t width = args.kept_width;
    if (!width) return {};
    return {static_cast<T*>(args.kept) + ((t - 1) * B + b) * width, width};
  }
  // An LSTM's c_t, where it was kept: the last H numbers of a row.
  Rows<T> kept_c(int64_t t, int64_t b) const {
    const Rows<T> row = kept(t, b);
    return {row ? row.data + row.ld - H : nullptr, row.ld};
  }
  ConstRows<T> c(int64_t t, int64_t b) const {
    if (t > 0) return {kept_c(t, b).data, args.kept_width};
    return ConstRows<T>{static_cast<const T*>(args.c0), H}.from(b);
  }
};

}  // namespace bppsa::BPPSA_ISA
