// Samples of different lengths side by side, the longest of a group first: a step is walked for
// those alone that have not ended. How many these are changes every so many steps at most.
//
// Forward and backward walk the same steps: what the forward leaves out it does not keep.
#pragma once

#include "../simd/parallel.h"
#include "layer.h"

namespace bppsa::BPPSA_ISA {

// Steps [first, last] of the first n samples of a group; steps ascend from 1.
struct Run {
  int64_t first, last, n;
};

// Samples [b, b + n) of a layer.
struct RaggedGroup {
  static constexpr int64_t kSteps = 8;

  const int64_t* lengths;  // of all samples; or null
  int64_t steps, b, n;

  static SampleGroups groups(const RecurrentRequest& request, int64_t threads) {
    return request.lengths ? SampleGroups::of(request.B, request.groups)
                           : SampleGroups(request.B, threads);
  }

  // How many have not ended before step t, or a few steps before it.
  int64_t active(int64_t t) const {
    if (!lengths) return n;
    const int64_t ended = (t - 1) / kSteps * kSteps;
    int64_t count = n;
    while (count > 0 && lengths[b + count - 1] <= ended) --count;
    return count;
  }

  // The longest run that begins with step t (and is as long as they are, if they all have one).
  Run from(int64_t t) const {
    Run run{t, steps, active(t)};
    if (!lengths) return run;
    for (run.last = t - 1; run.last < steps && active(run.last + 1) == run.n;)
      run.last = min(steps, run.last / kSteps * kSteps + kSteps);
    return run;
  }

  // That which ends with step t.
  Run up_to(int64_t t) const {
    Run run{1, t, active(t)};
    if (!lengths) return run;
    for (run.first = t + 1; run.first > 1 && active(run.first - 1) == run.n;)
      run.first = (run.first - 2) / kSteps * kSteps + 1;
    return run;
  }
};

}  // namespace bppsa::BPPSA_ISA
