// The recurrent layers' kernels of one instruction set: cells by dtype; see kernels.cpp.
#include "../cells/gru.h"
#include "../cells/lstm.h"
#include "../cells/rnn.h"
#include "../recurrent/backward.h"
#include "../recurrent/forward.h"

namespace bppsa::BPPSA_ISA {
namespace {

template <class T>
struct Type {
  using type = T;
};

template <class Body>
void with_cell(const RecurrentArgs& args, const Body& body) {
  const bool f64 = args.storage == Storage::f64;
  switch (args.cell) {
    case RecurrentCell::rnn_tanh:
      return f64 ? body(Type<Rnn<double, false>>{}) : body(Type<Rnn<float, false>>{});
    case RecurrentCell::rnn_relu:
      return f64 ? body(Type<Rnn<double, true>>{}) : body(Type<Rnn<float, true>>{});
    case RecurrentCell::gru:
      return f64 ? body(Type<Gru<double>>{}) : body(Type<Gru<float>>{});
    case RecurrentCell::lstm:
      return f64 ? body(Type<Lstm<double>>{}) : body(Type<Lstm<float>>{});
  }
}

}  // namespace

void recurrent_forward(const RecurrentForwardArgs& args, const Parallel& parallel) {
  with_cell(args, [&](auto cell) { layer_forward<typename decltype(cell)::type>(args, parallel); });
}

void recurrent_backward(const RecurrentBackwardArgs& args, const Plan& plan,
                        const Parallel& parallel) {
  with_cell(args, [&](auto cell) {
    layer_backward<typename decltype(cell)::type>(args, plan, parallel);
  });
}

}  // namespace bppsa::BPPSA_ISA
