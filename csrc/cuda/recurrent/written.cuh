#pragma once
// The Blelloch scan of a recurrent chain: its transposed Jacobians are written out, entry by entry,
// and become a dense chain of N = kStates * H numbers, scanned as such (../dense/scan.cuh).
// Where the scratch limit does not hold them all, samples go in groups and time in stretches, from
// the end; the g at the beginning of a stretch is the carry of the one before.

#include <algorithm>

#include "../dense/chain.cuh"
#include "../device/threads.cuh"
#include "walk.cuh"

namespace bppsa::cuda {

/// Of dense/scan.cuh, compiled in scans.cu.
template <typename scalar_t>
void scan_blelloch(const DenseChain<scalar_t>& chain, const Vectors<scalar_t>& out, int64_t levels,
                   Launcher& launch);

// A stretch of steps first … first + steps - 1, as a dense chain: its vector i is the g before its
// step i; its vector `steps` is the carry.
template <typename Real>
struct Stretch {
  int64_t first, steps, B;  // B: samples that are worked on
  int N;
  Real *jac_t, *grad, *g;  // (steps, B, N, N), (steps + 1, B, N) twice
};

template <class Cell>
__global__ void __launch_bounds__(kThreadsOfBlock)
    write_jacobians_kernel(BackwardView<typename Cell::scalar_t> view,
                           Stretch<typename Cell::scalar_t> stretch) {
  using Real = typename Cell::scalar_t;
  constexpr int S = Cell::kStates;
  const int H = view.H, N = stretch.N;
  const int64_t count = stretch.steps * stretch.B * N * N;
  for_each_thread(count, [&](int64_t e) {
    const int c = static_cast<int>(e % N), r = static_cast<int>(e / N % N);
    const int64_t matrix = e / N / N, i = stretch.first + matrix / stretch.B;
    const int64_t b = matrix % stretch.B;
    const int j = c % H, k = r % H;
    const Tape<Real> tape = view.tape.from(view.row(i, b), b * H);
    const auto factors = Cell::factors(Cell::read(tape, j, i == 0, j - view.row_step()));
    Real unit[S] = {}, d[Cell::kRows], past[S];
    unit[c / H] = 1;
    Cell::pull(factors, unit, d, past);
    Real entry = k == j ? past[r / H] : Real(0);
    if (r < H) {
      for (int g = 0; g < Cell::kGates; ++g) {
        entry += view.w_hh[(int64_t{g} * H + j) * H + k] * d[Cell::kFirstRecurrentRow + g];
      }
    }
    stretch.jac_t[e] = entry;
  });
}

template <class Cell>
__global__ void __launch_bounds__(kThreadsOfBlock)
    write_direct_kernel(BackwardView<typename Cell::scalar_t> view,
                        Stretch<typename Cell::scalar_t> stretch) {
  using Real = typename Cell::scalar_t;
  const int H = view.H, N = stretch.N;
  const int64_t count = (stretch.steps + 1) * stretch.B * N;
  for_each_thread(count, [&](int64_t e) {
    const int r = static_cast<int>(e % N);
    const int64_t b = e / N % stretch.B, at = e / N / stretch.B;
    const int64_t i = stretch.first + at - 1;  // the step whose state this is
    const bool last = at == stretch.steps;
    if (last && i < view.T - 1) {
      stretch.grad[e] = stretch.g[e % (stretch.B * N)];  // what the stretch before left there
    } else if (last) {
      stretch.grad[e] = view.last(r / H, b, r % H);
    } else {
      stretch.grad[e] = r < H && i >= 0 ? view.direct(i, b, r) : Real(0);
    }
  });
}

template <class Cell>
__global__ void __launch_bounds__(kThreadsOfBlock)
    publish_kernel(BackwardView<typename Cell::scalar_t> view,
                   Stretch<typename Cell::scalar_t> stretch) {
  using Real = typename Cell::scalar_t;
  constexpr int S = Cell::kStates;
  const int H = view.H, N = stretch.N;
  const int64_t count = (stretch.steps + 1) * stretch.B * H;
  for_each_thread(count, [&](int64_t e) {
    const int j = static_cast<int>(e % H);
    const int64_t b = e / H % stretch.B, at = e / H / stretch.B;
    const int64_t i = stretch.first + at - 1;
    Real g[S];
    for (int s = 0; s < S; ++s) g[s] = stretch.g[e / H * N + s * H + j];
    if (i < 0) view.finish(b, j, g);
    if (at == 0) return;  // a state of the stretch before this one in time
    const int64_t row = view.row(i, b);
    const auto factors =
        Cell::factors(Cell::read(view.tape.from(row, b * H), j, i == 0, j - view.row_step()));
    Real d[Cell::kRows], past[S];
    Cell::pull(factors, g, d, past);
    for (int k = 0; k < Cell::kRows; ++k) view.rows[row * Cell::kRows + k * H + j] = d[k];
  });
}

template <class Cell>
void scan_written(const BackwardView<typename Cell::scalar_t>& view, int64_t levels,
                  Launcher& launch) {
  using Real = typename Cell::scalar_t;
  constexpr int64_t kLeastSteps = 64;  // shorter stretches are not worth whole groups of samples
  const int N = Cell::kStates * view.H;
  const int64_t matrix = int64_t{N} * N * sizeof(Real);
  const int64_t matrices =
      std::max<int64_t>(static_cast<int64_t>(launch.scratch_limit) / matrix, 1);
  const int64_t samples = std::clamp<int64_t>(matrices / std::min(view.T, kLeastSteps), 1, view.B);
  const int64_t steps = std::clamp<int64_t>(matrices / samples, 1, view.T);
  Real* const jac_t = launch.template allocate<Real>(steps * samples * N * N);
  Real* const grad = launch.template allocate<Real>((steps + 1) * samples * N);
  Real* const g = launch.template allocate<Real>((steps + 1) * samples * N);
  for (int64_t b = 0; b < view.B; b += samples) {
    for (int64_t end = view.T; end > 0; end -= std::min(end, steps)) {
      const int64_t own = std::min(end, steps), B = std::min(samples, view.B - b);
      const auto part = view.template of_samples<Cell::kRows>(b, B);
      const Stretch<Real> stretch{end - own, own, B, N, jac_t, grad, g};
      const auto spread = [&](const char* name, auto kernel, int64_t count) {
        launch_threads(launch, name, kernel, count, part, stretch);
      };
      spread("jacobians", write_jacobians_kernel<Cell>, own * B * N * N);
      spread("direct", write_direct_kernel<Cell>, (own + 1) * B * N);
      // Each stretch's products take as much scratch as the last one's: they take its place.
      const DenseChain<Real> chain{
          {jac_t, B * N * N, int64_t{N} * N, N, 1}, {grad, B * N, N, 1}, own, B, N};
      launch.with_scratch(
          [&] { scan_blelloch(chain, Vectors<Real>{g, B * N, N, 1}, levels, launch); });
      spread("publish", publish_kernel<Cell>, (own + 1) * B * view.H);
    }
  }
}

}  // namespace bppsa::cuda
