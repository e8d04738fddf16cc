// Torch's threads at work on an operator: a crew that works together, or its caller alone.
//
// Work is divided by the number of threads, whoever does it then: results have the same bits.
//
// A region of torch's threads ends when the last of them has come to its end. On a busy machine
// that one may wait milliseconds for a core, for a share of microseconds, and the others wait with
// it: together they take longer than the caller would alone. So each calling thread has an
// allowance of time to lose by waiting. It grows slowly, to about the length of a hiccup; what a
// region took longer than all its shares in a row is paid from it, and while it is overdrawn, the
// caller works alone. A crew of some of the threads would not help: torch's regions wait for all
// of its threads, those without a share too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../requests/plan.h"

namespace bppsa::cpu {

// Torch's threads, or one alone where waking them costs more than they would save.
Parallel parallel_for_work(int64_t multiply_adds, bool flush_denormals = false);

// What the calling thread's crew does from now on: "adaptive", or always "together" or "alone".
void set_crew(std::string mode);

// The regions of the calling thread so far: how many were worked on together, how many alone.
std::vector<int64_t> crew_regions();

}  // namespace bppsa::cpu
