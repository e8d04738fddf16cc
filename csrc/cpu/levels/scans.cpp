// The scans of one instruction set: chains x scan algorithms, by dtype.
#include "../../scan/folded.h"
#include "../../scan/scan.h"
#include "../dense_chain.h"
#include "../diagonal_chain.h"
#include "table.h"

namespace bppsa::BPPSA_ISA {
namespace {

template <typename S>
void diagonal_scan_as(const DiagonalScanRequest& request, const Plan& plan,
                      const Parallel& parallel) {
  constexpr int kBlock = 64;
  switch (plan.algorithm) {
    case Algorithm::linear:
      return linear_scan(DiagonalChain<S, kBlock>(request), parallel);
    case Algorithm::chunked:
      return folded_scan(DiagonalChain<S, kBlock>(request), plan.chunk, parallel);
    case Algorithm::blelloch:
      return blelloch_scan(DiagonalChain<S, 1>(request), plan.levels, parallel);
  }
}

}  // namespace

void dense_scan(const DenseScanRequest& request, const Plan& plan, const Parallel& parallel) {
  with_storage(request.storage, [&](auto storage) {
    scan(DenseChain<typename decltype(storage)::type>(request), plan, parallel);
  });
}

void diagonal_scan(const DiagonalScanRequest& request, const Plan& plan, const Parallel& parallel) {
  with_storage(request.storage, [&](auto storage) {
    diagonal_scan_as<typename decltype(storage)::type>(request, plan, parallel);
  });
}

}  // namespace bppsa::BPPSA_ISA
