#pragma once
// The chunked scan, three launches for N chunks of `chunk` steps each:
//   1. chunks 1 … N-2 compose their products; beside them chunk N-1, with carry u[T], is replayed;
//   2. the carries of chunks N-3 … 0, matrix-vector only;
//   3. chunks 0 … N-2 are replayed.
// Chunk 0 passes its carry to nobody and needs no product either.

#include <algorithm>

#include "compose.cuh"
#include "scan_linear.cuh"

namespace bppsa::cuda {

/// Calls run(chain, out) for groups of samples whose scratch, at `bytes` a sample, stays within the
/// launcher's limit. Groups follow each other in the stream and may share the scratch.
template <class Cell, class Run>
void for_sample_groups(const Chain<Cell>& chain, const Vectors<typename Cell::scalar_t>& out,
                       int64_t most, Run run) {
  for (int64_t b = 0; b < chain.B; b += most) {
    Chain<Cell> group = chain.from_sample(b);
    group.B = std::min(most, group.B);
    run(group, out.from_sample(b));
  }
}

inline int64_t samples_per_group(int64_t bytes, int64_t B, const Launcher& launch) {
  const int64_t limit = static_cast<int64_t>(launch.scratch_limit);
  return std::clamp<int64_t>(limit / std::max<int64_t>(bytes, 1), 1, B);
}

template <class Cell>
void scan_chunked(const Chain<Cell>& chain, const Vectors<typename Cell::scalar_t>& out,
                  int64_t chunk, Launcher& launch) {
  using acc_t = typename Cell::acc_t;
  const int H = chain.H;
  const ComposePlan plan = plan_compose<acc_t>(H, launch.shared_limit);
  // A chunk of one step has nothing to compose; a panel that does not fit belongs to matrices so
  // large that their products cannot pay.
  if (chunk < 2 || chunk >= chain.T || plan.shared == 0) return scan_linear(chain, out, launch);

  const int64_t nodes = ceil_div(chain.T, chunk) - 1;
  const int64_t product = nodes * H * (H + 1), carry = nodes * H;
  const int64_t most = samples_per_group((product + carry) * sizeof(acc_t), chain.B, launch);
  acc_t* const scratch = launch.template allocate<acc_t>((product + carry) * most);
  for_sample_groups(chain, out, most, [&](const Chain<Cell>& part, const auto& part_out) {
    const Products<acc_t> products{scratch, nodes, part.B, H};
    const Carries<acc_t> carries{scratch + product * most, part.B, H};
    const Carries<acc_t> incoming{carries(nodes - 1, 0), part.B, H};
    compose(part, chunk, products, plan, part_out, carries, launch);
    if (nodes > 1) pull(part, chunk, products, nodes, incoming, carries, launch);
    replay(part, part_out, chunk, nodes, carries, launch);
  });
}

}  // namespace bppsa::cuda
