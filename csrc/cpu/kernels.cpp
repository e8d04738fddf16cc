// The CPU kernels of one instruction set: cells x scan algorithms, instantiated by dtype,
// vector width and nonlinearity. Compiled once per level; see isa.h.
#include "kernels.h"

#include "../cells/dense.h"
#include "../cells/diagonal.h"
#include "../cells/rnn.h"
#include "../scan/blelloch.h"
#include "../scan/chunked.h"
#include "../scan/folded.h"
#include "../scan/linear.h"

namespace bppsa::BPPSA_ISA {
namespace {

template <class Cell>
void scan(const Cell& cell, const Plan& plan, const Parallel& parallel) {
  switch (plan.algorithm) {
    case Algorithm::linear:
      return linear_scan(cell, parallel);
    case Algorithm::chunked:
      return chunked_scan(cell, plan.chunk, parallel);
    case Algorithm::blelloch:
      return blelloch_scan(cell, plan.levels, parallel);
  }
}

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

template <typename S>
void diagonal_scan_as(const DiagonalScanArgs& args, const Plan& plan, const Parallel& parallel) {
  constexpr int kBlock = 64;
  switch (plan.algorithm) {
    case Algorithm::linear:
      return linear_scan(DiagonalCell<S, kBlock>(args), parallel);
    case Algorithm::chunked:
      return folded_scan(DiagonalCell<S, kBlock>(args), plan.chunk, parallel);
    case Algorithm::blelloch:
      return blelloch_scan(DiagonalCell<S, 1>(args), plan.levels, parallel);
  }
}

void diagonal_scan(const DiagonalScanArgs& args, const Plan& plan, const Parallel& parallel) {
  switch (args.storage) {
    case Storage::f32:
      return diagonal_scan_as<float>(args, plan, parallel);
    case Storage::f64:
      return diagonal_scan_as<double>(args, plan, parallel);
    case Storage::bf16:
      return diagonal_scan_as<BFloat16>(args, plan, parallel);
    case Storage::f16:
      return diagonal_scan_as<Float16>(args, plan, parallel);
  }
}

template <typename T>
void rnn_forward_as(const RnnForwardArgs& args, const Parallel& parallel) {
  with_width<T>(best_width<T>(args.H), [&](auto width) {
    constexpr int W = decltype(width)::value;
    if (args.nonlinearity == Nonlinearity::tanh)
      rnn_forward<T, W, Nonlinearity::tanh>(args, parallel);
    else
      rnn_forward<T, W, Nonlinearity::relu>(args, parallel);
  });
}

void rnn_forward_any(const RnnForwardArgs& args, const Parallel& parallel) {
  if (args.storage == Storage::f64) return rnn_forward_as<double>(args, parallel);
  rnn_forward_as<float>(args, parallel);
}

template <typename T>
void rnn_backward_as(const RnnBackwardArgs& args, const Plan& plan, const Parallel& parallel) {
  switch (args.nonlinearity) {
    case Nonlinearity::tanh:
      return scan(RnnCell<T, Nonlinearity::tanh>(args), plan, parallel);
    case Nonlinearity::relu:
      return scan(RnnCell<T, Nonlinearity::relu>(args), plan, parallel);
    case Nonlinearity::given:
      return scan(RnnCell<T, Nonlinearity::given>(args), plan, parallel);
  }
}

void rnn_backward(const RnnBackwardArgs& args, const Plan& plan, const Parallel& parallel) {
  if (args.storage == Storage::f64) return rnn_backward_as<double>(args, plan, parallel);
  rnn_backward_as<float>(args, plan, parallel);
}

}  // namespace

#define BPPSA_STRING_(x) #x
#define BPPSA_STRING(x) BPPSA_STRING_(x)
extern const Kernels table;
const Kernels table = {BPPSA_STRING(BPPSA_ISA), dense_scan, diagonal_scan, rnn_forward_any,
                       rnn_backward};

}  // namespace bppsa::BPPSA_ISA
