#pragma once
// C = A B by a fixed plan (csrc/jacobians/symbolic.h): numbers only, nothing is searched or sorted.
//
// A team of threads, a warp or a block, has one row of C and a tile of samples. It takes the
// entries a_ij of its row in order; its threads lie over the entries of row j of B and over the
// samples. All products of one a_ij go to different places of C, so that threads never meet, and
// before the next one the team waits for all: each sum is added up in the order of the CPU's,
// without atomics, the same for every launch.
//
// A row is summed in shared memory where it fits, and in C itself where it is too long. Where the
// plan says that products come in C's own order, they are written to C at once and nobody waits.

#include "../../requests/jacobians.h"
#include "../device/launcher.cuh"
#include "../device/numbers.cuh"

namespace bppsa::cuda {

struct WarpTeam {
  static constexpr int kThreads = kWarp, kBlock = 128;
  static BPPSA_DEVICE void sync() { __syncwarp(); }
};
struct BlockTeam {
  static constexpr int kThreads = 256, kBlock = 256;
  static BPPSA_DEVICE void sync() { __syncthreads(); }
};

// How the work is cut, found on the host.
struct ProductShape {
  int samples;     // of a tile, a power of two up to a warp
  int64_t tiles;   // of samples
  int capacity;    // numbers of the row in a team's shared memory
  int team_bytes;  // of a team's shared memory

  template <typename T>
  static ProductShape of(const NumericRequest& args, int64_t shared_of_team);
};

// A row of B that an entry of A meets, looked up by one thread for its team.
struct RowOfB {
  int32_t first, size;
};
constexpr int kStaged = kWarp;  // looked up at a time: no more than a team has threads

// A thread's place in its team, and its sample.
struct ProductLane {
  int column, columns;  // which entries of a row it has: column, column + columns, …
  int sample_of_tile;
  int64_t sample;
  bool active;

  template <class Team>
  static BPPSA_DEVICE ProductLane of(const NumericRequest& args, const ProductShape& shape,
                                     int64_t tile) {
    const int rank = threadIdx.x % Team::kThreads, s = rank % shape.samples;
    const int64_t sample = tile * shape.samples + s;
    return {rank / shape.samples, Team::kThreads / shape.samples, s, sample, sample < args.batch};
  }
};

/// Calls run(j, row of B) for the entries j of row i of A, in order, by all threads of the team.
template <class Team, class Run>
BPPSA_DEVICE void for_each_entry(const NumericRequest& args, int64_t i, RowOfB* staged,
                                 const Run& run) {
  const int64_t begin = args.a.crow[i], end = args.a.crow[i + 1];
  const int rank = threadIdx.x % Team::kThreads;
  for (int64_t j = begin; j < end; j += kStaged) {
    const int n = static_cast<int>(smaller<int64_t>(end - j, kStaged));
    if (rank < n) {
      const int64_t k = args.a.col[j + rank];
      const int32_t first = args.b.crow[k];
      staged[rank] = {first, args.b.crow[k + 1] - first};
    }
    Team::sync();
    for (int m = 0; m < n; ++m) run(j + m, staged[m]);
    Team::sync();
  }
}

// Values of A, B and C as one sample sees them.
template <typename T>
struct ProductOperands {
  const T *a, *b;
  T* c;

  BPPSA_DEVICE ProductOperands(const NumericRequest& args, int64_t sample)
      : a(static_cast<const T*>(args.a_values) + sample * args.a_stride.sample),
        b(static_cast<const T*>(args.b_values) + sample * args.b_stride.sample),
        c(static_cast<T*>(args.values) + sample * args.stride.sample) {}
};

// Products in the order of C's entries.
template <class Team, typename T>
BPPSA_DEVICE void write_row(const NumericRequest& args, int64_t i, const ProductLane& lane,
                            RowOfB* staged, const ProductOperands<T>& of) {
  T* c = of.c + args.crow[i] * args.stride.entry;
  if (args.b_single) {  // row k of B is its entry k
    const int64_t begin = args.a.crow[i], size = args.a.crow[i + 1] - begin;
    for (int64_t n = lane.column; lane.active && n < size; n += lane.columns) {
      const int64_t j = begin + n, k = args.a.col[j];
      c[n * args.stride.entry] = of.a[j * args.a_stride.entry] * of.b[k * args.b_stride.entry];
    }
    return;
  }
  for_each_entry<Team>(args, i, staged, [&](int64_t j, RowOfB row) {
    if (lane.active) {
      const T a = of.a[j * args.a_stride.entry];
      const T* const b = of.b + row.first * args.b_stride.entry;
      for (int64_t p = lane.column; p < row.size; p += lane.columns) {
        c[p * args.stride.entry] = a * b[p * args.b_stride.entry];
      }
    }
    c += row.size * args.stride.entry;
  });
}

// Sums the row of one sample at sum[place * stride].
template <class Team, typename T>
BPPSA_DEVICE void sum_row(const NumericRequest& args, int64_t i, const ProductLane& lane,
                          RowOfB* staged, const ProductOperands<T>& of, T* sum, int64_t stride) {
  const int64_t size = args.crow[i + 1] - args.crow[i];
  if (lane.active) {
    for (int64_t e = lane.column; e < size; e += lane.columns) sum[e * stride] = 0;
  }
  Team::sync();
  int64_t before = args.program[i];
  for_each_entry<Team>(args, i, staged, [&](int64_t j, RowOfB row) {
    if (lane.active) {
      const T a = of.a[j * args.a_stride.entry];
      const T* const b = of.b + row.first * args.b_stride.entry;
      for (int64_t p = lane.column; p < row.size; p += lane.columns) {
        const int64_t at = before + p;
        const int64_t place = args.wide ? static_cast<const uint32_t*>(args.positions)[at]
                                        : static_cast<const uint16_t*>(args.positions)[at];
        sum[place * stride] += a * b[p * args.b_stride.entry];
      }
    }
    before += row.size;
    Team::sync();
  });
}

template <typename T, class Team>
__global__ void __launch_bounds__(Team::kBlock)
    multiply_kernel(NumericRequest args, ProductShape shape) {
  const int team = threadIdx.x / Team::kThreads, teams = blockDim.x / Team::kThreads;
  unsigned char* const shared = shared_memory() + team * shape.team_bytes;
  T* const row = reinterpret_cast<T*>(shared);
  RowOfB* const staged = reinterpret_cast<RowOfB*>(row + shape.capacity);
  const int64_t tasks = args.rows * shape.tiles;
  for (int64_t n = int64_t{blockIdx.x} * teams + team; n < tasks; n += int64_t{gridDim.x} * teams) {
    const int64_t i = n / shape.tiles;
    const auto lane = ProductLane::of<Team>(args, shape, n % shape.tiles);
    const ProductOperands<T> of(args, lane.active ? lane.sample : 0);
    if (args.program[i] < 0) {
      write_row<Team>(args, i, lane, staged, of);
      continue;
    }
    T* const c = of.c + args.crow[i] * args.stride.entry;
    const int64_t size = args.crow[i + 1] - args.crow[i];
    if (size * shape.samples > shape.capacity) {
      sum_row<Team>(args, i, lane, staged, of, c, args.stride.entry);
      continue;
    }
    T* const sum = row + lane.sample_of_tile;
    sum_row<Team>(args, i, lane, staged, of, sum, shape.samples);
    if (lane.active) {
      for (int64_t e = lane.column; e < size; e += lane.columns) {
        c[e * args.stride.entry] = sum[e * shape.samples];
      }
    }
    Team::sync();
  }
}

template <typename T>
ProductShape ProductShape::of(const NumericRequest& args, int64_t shared_of_team) {
  constexpr int kSector = 32 / sizeof(T);  // of memory: narrower tiles would read parts of it
  constexpr int64_t kStagedBytes = kStaged * sizeof(RowOfB);
  const int64_t room =
      shared_of_team <= kStagedBytes ? 0 : (shared_of_team - kStagedBytes) / int64_t{sizeof(T)};
  const int64_t longest = args.positions ? args.longest : 0;  // none is summed without places
  int samples = 1;
  if (args.side_by_side) {
    while (samples < kWarp && samples < args.batch) samples *= 2;
    const auto wasteful = [&] {
      return 4 * round_up<int64_t>(args.batch, samples) > 5 * args.batch ||
             longest * samples > room;
    };
    while (samples > kSector && wasteful()) samples /= 2;
  }
  // In fours, so that what follows the row is aligned.
  const int64_t capacity = smaller(round_up<int64_t>(longest * samples, 4), room / 4 * 4);
  return {samples, ceil_div<int64_t>(args.batch, samples), static_cast<int>(capacity),
          static_cast<int>(capacity * sizeof(T) + kStagedBytes)};
}

template <typename T, class Team>
void launch_product(const NumericRequest& args, int64_t shared_of_block, Launcher& launch) {
  constexpr int kTeams = Team::kBlock / Team::kThreads;
  const auto shape = ProductShape::of<T>(args, shared_of_block / kTeams / 16 * 16);
  launch("multiply", multiply_kernel<T, Team>, ceil_div<int64_t>(args.rows * shape.tiles, kTeams),
         Team::kBlock, static_cast<size_t>(kTeams) * shape.team_bytes, args, shape);
}

/// C = A B. Blocks where warps would have to go over rows of B many times.
template <typename T>
void run(const NumericRequest& args, Launcher& launch) {
  if (args.rows == 0 || args.batch == 0 || args.entries == 0) return;
  // Four blocks to a multiprocessor hide each other's waiting; each takes 1 KiB for itself.
  constexpr int64_t kReserved = 1024;
  const auto limit = static_cast<int64_t>(launch.shared_limit);
  const int64_t quarter = (limit + kReserved) / 4 - kReserved;
  const int64_t shared = quarter > 0 ? quarter : limit / 4;
  const int64_t samples = args.side_by_side ? smaller<int64_t>(args.batch, kWarp) : 1;
  if (args.b_entries * samples >= BlockTeam::kThreads * args.b_rows) {
    launch_product<T, BlockTeam>(args, shared, launch);
  } else {
    launch_product<T, WarpTeam>(args, shared, launch);
  }
}

}  // namespace bppsa::cuda
