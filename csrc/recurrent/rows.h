// What the recurrent cells and the loops around them hand each other.
//
// T steps, B batch, I input, H hidden, P state that is put out (H, or less for an LSTM with a
// projection), G gates of H pre-activations. "Padded" is H or P rounded up, see units.h. Tensors of
// the caller have rows of just H or P numbers; everything inside the kernels, and what the forward
// keeps for the backward, is padded.
#pragma once

#include "../cpu/kernels.h"
#include "../scan/workspace.h"
#include "panels.h"

namespace bppsa::BPPSA_ISA {

// Rows of numbers in memory, `ld` apart; ld = 0 repeats one row. Null stands for zeros.
template <typename T>
struct Rows {
  T* data = nullptr;
  int64_t ld = 0;

  T* operator[](int64_t r) const { return data + r * ld; }
  Rows from(int64_t r) const { return {data ? data + r * ld : nullptr, ld}; }
  // Numbers from `column` on of rows from `row` on.
  T* at(int64_t row, int64_t column) const { return data ? data + row * ld + column : nullptr; }
  explicit operator bool() const { return data != nullptr; }
};

template <typename T>
using ConstRows = Rows<const T>;

// Asks for the cache lines of `count` numbers that will soon be written: where another core has
// read them, the store would wait for their return.
template <typename T>
BPPSA_INLINE void prefetch_to_write([[maybe_unused]] const T* first,
                                    [[maybe_unused]] int64_t count) {
#if defined(__x86_64__)
  const char* end = reinterpret_cast<const char*>(first + count);
  for (const char* p = reinterpret_cast<const char*>(first); p < end; p += 64)
    asm volatile("prefetchw %0" : : "m"(*p));
#endif
}

// The weights as a cell's forward reads them, see weights.h.
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
  ConstRows<T> c;       // an LSTM's c before the step, padded
  Rows<T> gates;        // result: the slots as the cell keeps them
  Rows<T> c_next;       // result, padded; may be c
  Rows<T> kept_c;       // result: c once more, or null
  Rows<T> out;          // result: the state after the step, padded; before the projection
  Rows<T> shown;        // result: the state once more, H numbers a row, or null
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
  const RecurrentArgs& args;
  int64_t steps, B, I, H, P;
  int64_t padded, padded_P;
  const T *w_ih, *w_hh, *b_ih, *b_hh, *w_hr;

  explicit Layer(const RecurrentArgs& args)
      : args(args),
        steps(args.T),
        B(args.B),
        I(args.I),
        H(args.H),
        P(args.P),
        padded(padded_units<T>(args.H)),
        padded_P(padded_units<T>(args.P)),
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
  // An LSTM's c_t, where it was kept: the last padded units of a row.
  Rows<T> kept_c(int64_t t, int64_t b) const {
    const Rows<T> row = kept(t, b);
    return {row ? row.data + row.ld - padded : nullptr, row.ld};
  }
  ConstRows<T> c(int64_t t, int64_t b) const {
    if (t > 0) return {kept_c(t, b).data, args.kept_width};
    return ConstRows<T>{static_cast<const T*>(args.c0), H}.from(b);
  }
  int64_t c_width(int64_t t) const { return t > 0 ? padded : H; }
};

}  // namespace bppsa::BPPSA_ISA
