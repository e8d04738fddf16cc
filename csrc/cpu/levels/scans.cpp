// The scans of one instruction set: chains x scan algorithms, by dtype.
#include "../../scan/folded.h"
#include "../../scan/scan.h"
#include "dense_chain.h"
#include "diagonal_chain.h"
#include "table.h"

namespace bppsa::BPPSA_ISA {
void dense_scan(const DenseScanRequest& request, const Plan& plan, const Parallel& parallel) {
  with_storage(request.storage, [&](auto storage) {
    scan(DenseChain<typename decltype(storage)::type>{request}, plan, parallel);
  });
}

void diagonal_scan(const DiagonalScanRequest& request, const Plan& plan, const Parallel& parallel) {
  with_storage(request.storage, [&](auto storage) {
    using S = typename decltype(storage)::type;
    constexpr int64_t kBlock = 64, kMatrix = 1;  // elements of a sample
    const DiagonalChain<S> chain(request, plan.algorithm == Algorithm::blelloch ? kMatrix : kBlock);
    if (plan.algorithm == Algorithm::linear)
      linear_scan(chain, parallel);
    else if (plan.algorithm == Algorithm::chunked)
      folded_scan(chain, plan.chunk, parallel);
    else
      scan(chain, plan, parallel);
  });
}

}  // namespace bppsa::BPPSA_ISA
