#pragma once
// How a block lies over the recurrent matrix of one sample.
//
// A thread owns one hidden unit j (kPasses of them, where H is large), or the slice s of it:
// kSplit neighbouring lanes share a unit and add up by shuffles. Slice s covers the numbers
//   k = (i * kSplit + s) * kVec + e,   i = 0, 1, …,  e < kVec = 16 bytes / sizeof(T),
// of the vector that the matrix multiplies: 16-byte reads of shared memory without bank conflicts.
// The weights of the first kHeld of these pieces stay in registers for the whole sequence, those of
// the pieces after them in shared memory as far as they fit; what is left, if anything, is read
// again in every step.
//
// Every number of a vector that is read from shared memory would serve one product a gate, and that
// memory's bandwidth would be the limit. So kShared neighbouring units share their lanes: each of
// the kSplit * kShared lanes multiplies its slice, now of that many, for all kShared units, and the
// sums are handed to the units' own lanes. Every number read then serves kShared products a gate.
//
// Where even these do not hold the matrix, kBlocks blocks of a cluster share one sample: each owns
// its part of the units, lane s of a unit hands the unit's number to block s, and the barrier that
// ends a step is the cluster's.

#include "../device/launcher.cuh"
#include "../device/numbers.cuh"

namespace bppsa::cuda {

template <int split, int held, bool whole, int threads, int passes, int ahead, int blocks = 1,
          int shared = 1>
struct UnitShape {
  static constexpr int kShared = shared, kLanes = split * shared;
  static_assert(shared == 1 || (passes == 1 && kLanes <= 32), "units that share are one warp's");
  static constexpr int kBlocks = blocks;
  static_assert(blocks == 1 || (blocks == split && passes == 1), "a lane for each block");
  static constexpr bool kWhole = whole;  // nothing is left
  static constexpr int kSplit = split, kHeld = held, kThreads = threads, kPasses = passes;
  static constexpr int kAhead = ahead;  // steps whose inputs are in flight
  // Whether most steps are compiled apart, without a test for the end of the sequence: not where
  // each of them takes long, or is rare.
  static constexpr bool kUntested = passes == 1 && held > 0;
  static constexpr bool kOneWarp = threads == 32;
  static constexpr int kUnits = threads / split;  // of one pass
  static_assert(ahead % 2 == 0, "two panes of shared memory take turns");
};

template <typename Real>
constexpr int kVec = 16 / sizeof(Real);

template <typename Real>
struct alignas(16) Pack {
  Real e[kVec<Real>];
};

/// The length of a vector in shared memory: whole pieces.
template <typename Real, class Shape>
BPPSA_BOTH int padded(int H) {
  constexpr int piece = Shape::kSplit * kVec<Real>, held = Shape::kHeld * piece;
  static_assert(!Shape::kWhole || Shape::kHeld % Shape::kShared == 0, "whole pieces of each unit");
  if (Shape::kWhole) return held;
  return round_up(held >= H ? held : H, piece * Shape::kShared);
}

/// Threads of a block for H units: no more warps than have work.
template <class Shape>
int unit_threads(int H) {
  return smaller(Shape::kThreads, round_up(H * Shape::kSplit, 32));
}

/// Pieces of a thread's weights that go to the `left` bytes of shared memory, `piece` for a piece
/// of all threads.
template <typename Real, class Shape>
int staged_pieces(int H, size_t left, size_t piece) {
  if (Shape::kWhole || Shape::kPasses > 1 || Shape::kHeld == 0) return 0;
  const int not_held = padded<Real, Shape>(H) / (Shape::kSplit * kVec<Real>)-Shape::kHeld;
  return static_cast<int>(smaller(left / piece, static_cast<size_t>(not_held)));
}

constexpr int kMostUnits = 4096;

/// A sample of 129 … 256 units of several gates, in float32, on eight blocks. Backwards one sum a
/// unit is handed over, forwards one a gate: fewer units share there, here and below.
template <bool kBack>
using ClusterShape = UnitShape<8, 8, true, 256, 1, 2, 8, kBack ? 4 : 2>;

/// All units in passes of 128; nothing is held.
template <int units>
using LargeShape = UnitShape<4, 0, false, 512, units / 128, 2>;

/// One gate's weights fit the registers of one block; only matrices of several need a cluster.
template <int G, class Shape>
constexpr bool kUsed = Shape::kBlocks == 1 || G > 1;

/// Calls run(shape) with the shape for H units of G gates.
template <typename Real, int G, bool kBack, class Run>
void with_unit_shape(int H, const Launcher& launch, Run run) {
  if constexpr (sizeof(Real) == 4) {
    if (H <= 8) return run(UnitShape<1, 2, true, 32, 1, 8>{});
    if (H <= 20) return run(UnitShape<1, 5, true, 32, 1, 8>{});
    if (H <= 32) return run(UnitShape<1, 8, true, 32, 1, 8>{});
    constexpr int few = kBack && G > 1 ? 4 : 1, many = kBack || G == 1 ? 4 : 2;
    if (H <= 64) return run(UnitShape<4, 4, true, 256, 1, 4, 1, few>{});
    // 512 threads have 128 registers each: three or four gates do not fit all 32 weights.
    constexpr int held = G == 1 ? 8 : G == 3 ? 6 : 4;
    if (H <= 128) return run(UnitShape<4, held, G == 1, 512, 1, 2, 1, many>{});
    if constexpr (G == 1) {
      if (H <= 256) return run(UnitShape<2, 16, false, 512, 1, 2, 1, 8>{});
    } else {
      if (H <= 256 && launch.clusters) return run(ClusterShape<kBack>{});
    }
  } else {
    if (H <= 32) return run(UnitShape<4, 4, true, 128, 1, 4>{});
  }
  // A thread's units of all passes lie in local memory, which the driver reserves for every thread
  // that the device could hold: a GiB for the most.
  if (H <= 512) return run(LargeShape<512>{});
  run(LargeShape<kMostUnits>{});
}

/// The most units of G gates of which the gate gradients of two steps fit in `shared_limit` bytes.
template <typename Real>
int most_units(int G, size_t shared_limit) {
  const int most = static_cast<int>(shared_limit / (2 * G * sizeof(Real)));
  const int whole = padded<Real, LargeShape<kMostUnits>>(1);
  return most / whole * whole;
}

/// Launches a kernel with kBlocks blocks for every task, with shared memory for `vectors` vectors
/// and for as many pieces of the weights, the kernel's last argument, as fit behind them.
template <typename Real, int G, class Shape, class Kernel, typename... Arguments>
void launch_units(Launcher& launch, const char* name, Kernel kernel, int64_t tasks, int H,
                  int vectors, const Arguments&... arguments) {
  const int threads = unit_threads<Shape>(H);
  const size_t taken = size_t(vectors) * padded<Real, Shape>(H) * sizeof(Real);
  const size_t left = taken < launch.shared_limit ? launch.shared_limit - taken : 0;
  const size_t piece = size_t(threads) * G * sizeof(Pack<Real>);
  const int staged = staged_pieces<Real, Shape>(H, left, piece);
  launch.in_clusters(Shape::kBlocks, name, kernel, tasks, threads, taken + staged * piece,
                     arguments..., staged);
}

/// Calls step(inside, slot) `count` times, in rounds of kAhead that are unrolled, so that every
/// slot of a ring is a fixed set of registers. inside: `reserve` steps or more are left, this one
/// included, as long as which nothing need be tested.
template <class Shape, class Step>
BPPSA_DEVICE void in_rounds(int count, int reserve, const Step& step) {
  if constexpr (Shape::kUntested) {
    for (; count >= reserve; count -= Shape::kAhead) {
#pragma unroll
      for (int slot = 0; slot < Shape::kAhead; ++slot) step(true, slot);
    }
  }
  while (count > 0) {
#pragma unroll
    for (int slot = 0; slot < Shape::kAhead; ++slot) {
      if (count == 0) break;
      step(false, slot);
      --count;
    }
  }
}

/// This thread's unit of a pass; it can be past the last one.
template <class Shape>
BPPSA_DEVICE int unit_of(int pass) {
  const int units = blockDim.x / Shape::kSplit;
  const int block = Shape::kBlocks == 1 ? 0 : blockIdx.x % Shape::kBlocks;
  return (pass * Shape::kBlocks + block) * units + threadIdx.x / Shape::kSplit;
}

/// Of the lanes of a unit, the one that writes it.
template <class Shape>
BPPSA_DEVICE bool writes_unit() {
  return threadIdx.x % Shape::kSplit == 0;
}

/// Hands a unit's number, known to all its lanes, to all blocks that need it. `to` is a place in
/// this block's shared memory.
template <class Shape, typename Real>
BPPSA_DEVICE void share_unit(Real* to, Real value) {
  if constexpr (Shape::kBlocks == 1) {
    if (writes_unit<Shape>()) *to = value;
  } else {
    store_in_cluster(to, value, threadIdx.x % Shape::kSplit);
  }
}

/// Ends a step: what was shared before it is known after it, to all who share.
template <class Shape>
BPPSA_DEVICE void sync_units() {
  if constexpr (Shape::kBlocks > 1) {
    sync_cluster();
  } else {
    Shape::kOneWarp ? __syncwarp() : __syncthreads();
  }
}

}  // namespace bppsa::cuda
