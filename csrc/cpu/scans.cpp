// bppsa::reverse_scan and bppsa::diagonal_scan on the CPU: a chain of dense or of diagonal
// Jacobians under any scan algorithm.
#include "../operators/scans.h"

#include "crew.h"
#include "large_results.h"
#include "levels/table.h"

namespace bppsa::cpu {
namespace {

struct Device {
  static Tensor empty(const Tensor& like, Sizes size) { return empty_of_steps(like, size); }

  static void run(const DenseScanRequest& request, const Plan& plan, const Tensor&) {
    const int64_t states = request.B * request.H;
    if (states)
      kernels().dense_scan(request, plan, parallel_for_work(request.T * states * request.H));
  }
  static void run(const DiagonalScanRequest& request, const Plan& plan, const Tensor&) {
    const int64_t states = request.B * request.H;
    if (states) kernels().diagonal_scan(request, plan, parallel_for_work(request.T * states));
  }
};

}  // namespace
}  // namespace bppsa::cpu

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("reverse_scan", TORCH_BOX(&bppsa::reverse_scan<bppsa::cpu::Device>));
  m.impl("diagonal_scan", TORCH_BOX(&bppsa::diagonal_scan<bppsa::cpu::Device>));
}
