// bppsa::reverse_scan and bppsa::diagonal_scan on the CPU: a chain of dense or of diagonal
// Jacobians under any scan algorithm.
#include "../requests/from_tensors/scans.h"

#include "../requests/from_tensors/plan.h"
#include "levels/table.h"

namespace bppsa::cpu {

Tensor reverse_scan(const Tensor& jac_t, const Tensor& grad, const std::string& algorithm,
                    int64_t chunk, int64_t levels, bool adjoint) {
  const auto [request, out] = dense_scan_request(jac_t, grad, adjoint);
  const Plan plan = plan_of(algorithm, chunk, levels);
  if (out.numel()) kernels().dense_scan(request, plan, parallel_for_work(jac_t.numel()));
  return out;
}

Tensor diagonal_scan(const Tensor& decay, const Tensor& grad, const std::string& algorithm,
                     int64_t chunk, int64_t levels, bool adjoint) {
  const auto [request, out] = diagonal_scan_request(decay, grad, adjoint);
  const Plan plan = plan_of(algorithm, chunk, levels);
  if (out.numel()) kernels().diagonal_scan(request, plan, parallel_for_work(decay.numel()));
  return out;
}

}  // namespace bppsa::cpu

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("reverse_scan", TORCH_BOX(&bppsa::cpu::reverse_scan));
  m.impl("diagonal_scan", TORCH_BOX(&bppsa::cpu::diagonal_scan));
}
