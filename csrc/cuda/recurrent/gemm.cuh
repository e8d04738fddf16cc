#pragma once
// C[m][n] = Σ_k A(k, m) B(k, n) in IEEE arithmetic, whatever torch's TF32 setting is, with the sum
// over k cut into `splits` parts where m and n alone make too few blocks: the parts lie one after
// the other, (splits, M, N), and adding them up is the reader's affair (no atomics: the same bits
// every time).
//
// A and B are plain structs:
//   Real operator()(int64_t k, int64_t m) const;   static constexpr bool kAlongK: k is contiguous
//
// A block makes a tile of kSide x kSide results, a thread 4 x 4 of them.

#include "../device/launcher.cuh"
#include "../device/numbers.cuh"

namespace bppsa::cuda {

constexpr int kGemmDepth = 16, kGemmEach = 4;

template <typename Real, int kSide, class Load>
struct GemmStage {
  static constexpr int kThreads = (kSide / kGemmEach) * (kSide / kGemmEach);
  static constexpr int kTurns = kGemmDepth * kSide / kThreads;
  static constexpr int kPitch = kSide + 4;  // whole 16-byte rows, and banks that differ

  BPPSA_DEVICE static int depth(int turn) {
    const int e = turn * kThreads + threadIdx.x;
    return Load::kAlongK ? e % kGemmDepth : e / kSide;
  }
  BPPSA_DEVICE static int place(int turn) {
    const int e = turn * kThreads + threadIdx.x;
    return Load::kAlongK ? e / kGemmDepth : e % kSide;
  }
  BPPSA_DEVICE static void fetch(const Load& load, int64_t k, int64_t end, int64_t first,
                                 int64_t size, Real (&held)[kTurns]) {
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int64_t d = k + depth(turn), p = first + place(turn);
      held[turn] = d < end && p < size ? load(d, p) : Real(0);
    }
  }
  BPPSA_DEVICE static void store(const Real (&held)[kTurns], Real (*stage)[kPitch]) {
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) stage[depth(turn)][place(turn)] = held[turn];
  }
};

// kInParts: the sum may be cut. (Known to the compiler: a fifth of the registers.)
template <typename Real, bool kInParts>
struct Result {
  Real* data;
  int64_t M, N;
  BPPSA_DEVICE void operator()(int64_t split, int64_t m, int64_t n, Real value) const {
    data[((kInParts ? split * M : 0) + m) * N + n] = value;
  }
};

template <typename Real, bool kInParts, int kSide, class A, class B>
__global__ void __launch_bounds__((kSide / kGemmEach) * (kSide / kGemmEach))
    gemm_kernel(A a, B b, int64_t M, int64_t N, int64_t K, Result<Real, kInParts> to,
                int64_t splits) {
  using StageA = GemmStage<Real, kSide, A>;
  using StageB = GemmStage<Real, kSide, B>;
  constexpr int kAcross = kSide / kGemmEach;
  Real(*stage_a)[StageA::kPitch] = reinterpret_cast<Real(*)[StageA::kPitch]>(shared_memory());
  Real(*stage_b)[StageB::kPitch] = stage_a + kGemmDepth;
  const int64_t tiles_m = ceil_div<int64_t>(M, kSide), tiles_n = ceil_div<int64_t>(N, kSide);
  const int64_t share = round_up<int64_t>(ceil_div(K, splits), kGemmDepth);
  const int row = threadIdx.x / kAcross * kGemmEach, column = threadIdx.x % kAcross * kGemmEach;
  for (int64_t task = blockIdx.x; task < tiles_m * tiles_n * splits; task += gridDim.x) {
    const int64_t m0 = task % tiles_m * kSide, n0 = task / tiles_m % tiles_n * kSide;
    const int64_t split = task / tiles_m / tiles_n;
    const int64_t begin = split * share, end = smaller(begin + share, K);
    Real sum[kGemmEach][kGemmEach] = {};
    Real held_a[StageA::kTurns], held_b[StageB::kTurns];
    StageA::fetch(a, begin, end, m0, M, held_a);
    StageB::fetch(b, begin, end, n0, N, held_b);
    for (int64_t k = begin; k < end; k += kGemmDepth) {
      __syncthreads();  // the stage before has been read
      StageA::store(held_a, stage_a);
      StageB::store(held_b, stage_b);
      __syncthreads();
      StageA::fetch(a, k + kGemmDepth, end, m0, M, held_a);
      StageB::fetch(b, k + kGemmDepth, end, n0, N, held_b);
#pragma unroll
      for (int d = 0; d < kGemmDepth; ++d) {
#pragma unroll
        for (int i = 0; i < kGemmEach; ++i) {
#pragma unroll
          for (int j = 0; j < kGemmEach; ++j) {
            sum[i][j] += stage_a[d][row + i] * stage_b[d][column + j];
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kGemmEach; ++i) {
#pragma unroll
      for (int j = 0; j < kGemmEach; ++j) {
        const int64_t m = m0 + row + i, n = n0 + column + j;
        if (m < M && n < N) to(split, m, n, sum[i][j]);
      }
    }
    __syncthreads();  // the next task reuses the shared memory
  }
}

constexpr int kSmallSide = 32, kLargeSide = 64;

inline int gemm_side(int64_t M, int64_t N) {
  return smaller(M, N) <= kSmallSide ? kSmallSide : kLargeSide;
}

inline int64_t gemm_tiles(int64_t M, int64_t N) {
  const int64_t side = gemm_side(M, N);
  return ceil_div(M, side) * ceil_div(N, side);
}

/// Into how many parts the sum over K steps is cut, to give the device blocks enough: each is worth
/// it from 64 steps on.
inline int64_t gemm_splits(int64_t M, int64_t N, int64_t K, const Launcher& launch) {
  const int64_t wanted = ceil_div(int64_t{8} * launch.processors, gemm_tiles(M, N));
  return smaller(wanted, ceil_div<int64_t>(K, 64));
}

template <bool kInParts = false, typename Real, class A, class B>
void gemm(const A& a, const B& b, int64_t M, int64_t N, int64_t K, Real* to, Launcher& launch,
          int64_t splits = 1) {
  const auto with = [&](auto side) {
    constexpr int kSide = decltype(side)::value;
    launch("gemm", gemm_kernel<Real, kInParts, kSide, A, B>, gemm_tiles(M, N) * splits,
           (kSide / kGemmEach) * (kSide / kGemmEach), 2 * kGemmDepth * (kSide + 4) * sizeof(Real),
           a, b, M, N, K, Result<Real, kInParts>{to, M, N}, splits);
  };
  gemm_side(M, N) == kSmallSide ? with(std::integral_constant<int, kSmallSide>{})
                                : with(std::integral_constant<int, kLargeSide>{});
}

}  // namespace bppsa::cuda
