// One recurrent layer in one direction, on the CPU.
#include "../operators/recurrent_jacobian.h"
#include "../operators/recurrent_ragged.h"
#include "../operators/recurrent_windows.h"
#include "crew.h"
#include "large_results.h"
#include "levels/table.h"

namespace bppsa::cpu {
namespace {

Parallel parallel_for(const RecurrentRequest& request) {
  return parallel_for_work(
      request.T * request.B * row_of(request.cell).gates * request.H * (request.I + request.P + 8),
      true);
}

struct Device {
  // In blocks of H units, rounded up to whole vectors of 16 bytes (simd/unit_blocks.h).
  static int64_t kept_width(const RecurrentRequest& request, Keep keep) {
    const int64_t units = 16 / bytes_of(request.storage);
    const int64_t padded = (request.H + units - 1) / units * units;
    const CellRow& row = row_of(request.cell);
    if (keep == Keep::all) return row.kept * padded;
    return keep == Keep::least && row.states == 2 ? padded : 0;
  }

  static void check(const RecurrentRequest&) {}

  static Tensor empty(const Tensor& like, Sizes size) { return empty_of_steps(like, size); }

  static void run(const RecurrentForwardRequest& request, Keep, const Tensor& h_n) {
    kernels().recurrent_forward(request, parallel_for(request));
    const int64_t bytes = bytes_of(request.storage), row = request.P * bytes;
    const auto [step, sample] = request.output_stride;
    const char* from = static_cast<char*>(request.output) + (request.T - 1) * step * bytes;
    for (int64_t b = 0; b < request.B; ++b)
      std::memcpy(static_cast<char*>(h_n.data_ptr()) + b * row, from + b * sample * bytes, row);
  }

  static void run(const RecurrentBackwardRequest& request, const Plan& plan, const Tensor&) {
    kernels().recurrent_backward(request, plan, parallel_for(request));
  }

  static void run(const RecurrentJacobianRequest& request) {
    kernels().recurrent_jacobian(request, parallel_for(request));
  }
};

}  // namespace
}  // namespace bppsa::cpu

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("recurrent", TORCH_BOX(&bppsa::recurrent<bppsa::cpu::Device>));
  m.impl("recurrent_backward", TORCH_BOX(&bppsa::recurrent_backward<bppsa::cpu::Device>));
  m.impl("recurrent_ragged", TORCH_BOX(&bppsa::recurrent_ragged<bppsa::cpu::Device>));
  m.impl("recurrent_ragged_backward",
         TORCH_BOX(&bppsa::recurrent_ragged_backward<bppsa::cpu::Device>));
  m.impl("recurrent_jacobian", TORCH_BOX(&bppsa::recurrent_jacobian<bppsa::cpu::Device>));
  m.impl("recurrent_room", TORCH_BOX(&bppsa::recurrent_room<bppsa::cpu::Device>));
  m.impl("recurrent_into", TORCH_BOX(&bppsa::recurrent_into<bppsa::cpu::Device>));
  m.impl("recurrent_backward_into", TORCH_BOX(&bppsa::recurrent_backward_into<bppsa::cpu::Device>));
  m.impl("recurrent_windows", TORCH_BOX(&bppsa::recurrent_windows<bppsa::cpu::Device>));
  m.impl("recurrent_windows_backward",
         TORCH_BOX(&bppsa::recurrent_windows_backward<bppsa::cpu::Device>));
  m.impl("states_met", TORCH_BOX(&bppsa::states_met));
}
