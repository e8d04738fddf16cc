// The CPU kernels of one instruction set: cells x scan algorithms, instantiated by dtype,
// vector width and cell. Compiled once per level; see isa.h.
#include "kernels.h"

#include "../cells/dense.h"
#include "../cells/gru.h"
#include "../cells/lstm.h"
#include "../cells/rnn.h"
#include "../recurrent/backward.h"
#include "../recurrent/forward.h"
#include "../scan/scan.h"

namespace bppsa::BPPSA_ISA {
namespace {

template <class T>
struct Type {
  using type = T;
};

template <typename S>
void dense_scan_as(const DenseScanArgs& args, const Plan& plan, const Parallel& parallel) {
  scan(DenseCell<S>(args), plan, parallel);
}

void dense_scan(const DenseScanArgs& args, const Plan& plan, const Parallel& parallel) {
  switch (args.storage) {
    case Storage::f32:
      return dense_scan_as<float>(args, plan, parallel);
    case Storage::f64:
      return dense_scan_as<double>(args, plan, parallel);
    case Storage::bf16:
      return dense_scan_as<BFloat16>(args, plan, parallel);
    case Storage::f16:
      return dense_scan_as<Float16>(args, plan, parallel);
  }
}

template <class Body>
void with_recurrent_cell(const RecurrentArgs& args, const Body& body) {
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

void recurrent_forward_any(const RecurrentForwardArgs& args, const Parallel& parallel) {
  with_recurrent_cell(
      args, [&](auto cell) { recurrent_forward<typename decltype(cell)::type>(args, parallel); });
}

void recurrent_backward_any(const RecurrentBackwardArgs& args, const Plan& plan,
                            const Parallel& parallel) {
  with_recurrent_cell(args, [&](auto cell) {
    recurrent_backward<typename decltype(cell)::type>(args, plan, parallel);
  });
}

}  // namespace

#define BPPSA_STRING_(x) #x
#define BPPSA_STRING(x) BPPSA_STRING_(x)
extern const Kernels table;
const Kernels table = {BPPSA_STRING(BPPSA_ISA), dense_scan, recurrent_forward_any,
                       recurrent_backward_any};

}  // namespace bppsa::BPPSA_ISA
