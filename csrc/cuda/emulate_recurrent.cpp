// The recurrent chains of this directory as a plain C function over host memory, through the
// emulator: what tests/test_cuda_emulation_recurrent.py calls. Not part of any library that is
// installed.

#include <cstdio>
#include <exception>

#include "recurrent/projection.cuh"

namespace bppsa::cuda {
namespace {

// Mirrored by ctypes in the test. Null pointers: absent, or not wanted.
struct Request {
  const char* cell;
  const char* dtype;
  int64_t T, B, I, H, P, reverse;
  const void *x, *h0, *c0, *w_ih, *w_hh, *b_ih, *b_hh, *w_hr;
  int64_t x_strides[2], keep;
  void *output, *gates, *c, *m, *h_n, *c_n;
  const char* algorithm;  // null: the forward only
  int64_t chunk, levels;
  const void *grad_output, *grad_h_n, *grad_c_n;
  int64_t grad_strides[2];
  void *rows, *grad_x, *grad_h0, *grad_c0, *grad_w_ih, *grad_w_hh, *grad_b_ih, *grad_b_hh;
  void* grad_w_hr;
  int64_t seed, shared_limit, processors, scratch_limit, grid_limit;
  int64_t untrusted;    // answer: reports of products that were not trusted
  char launches[4096];  // answer: the names of the kernels launched, one a line; or the error
};

template <class Cell>
void run(const Request& q, Launcher& launch) {
  using T = typename Cell::scalar_t;
  const auto in = [](const void* p) { return static_cast<const T*>(p); };
  const auto out = [](void* p) { return static_cast<T*>(p); };
  const int H = static_cast<int>(q.H);
  const Inputs<T> x{in(q.x), q.x_strides[0], q.x_strides[1], q.B};
  ForwardView<T> forward{};
  forward.T_ = q.T, forward.B = q.B, forward.H = H, forward.reverse = q.reverse != 0;
  forward.w_ih = in(q.w_ih), forward.w_hh = in(q.w_hh);
  forward.b_ih = in(q.b_ih), forward.b_hh = in(q.b_hh);
  forward.h0 = in(q.h0), forward.c0 = in(q.c0);
  forward.output = out(q.output);
  forward.gates = q.keep == 2 ? static_cast<Quad<T>*>(q.gates) : nullptr;
  forward.c = out(q.c), forward.h_n = out(q.h_n), forward.c_n = out(q.c_n);
  const Projection<T> projection{static_cast<int>(q.P), in(q.w_hh), in(q.w_hr), in(q.h0)};
  if constexpr (Cell::kStates == 2) {
    if (q.w_hr) projected_forward<Cell>(forward, projection, x, q.I, out(q.m), launch);
  }
  if (!q.w_hr) recurrent_forward<Cell>(forward, x, q.I, launch);
  if (!q.algorithm) return;
  BackwardView<T> backward{};
  backward.T_ = q.T, backward.B = q.B, backward.H = H, backward.reverse = q.reverse != 0;
  backward.tape = {forward.output, forward.gates, forward.c, forward.h0, forward.c0};
  backward.w_hh = in(q.w_hh);
  backward.grad_output = in(q.grad_output);
  backward.grad_step = q.grad_strides[0], backward.grad_sample = q.grad_strides[1];
  backward.grad_h_n = in(q.grad_h_n), backward.grad_c_n = in(q.grad_c_n);
  backward.rows = out(q.rows), backward.grad_h0 = out(q.grad_h0);
  backward.grad_c0 = out(q.grad_c0);
  if constexpr (Cell::kKeeps) {
    if (q.keep == 1 && q.B > 0) {
      const bool apart = std::string(q.algorithm) == "blelloch";
      const auto gates = static_cast<Quad<T>*>(apart ? q.gates : q.rows);
      gates_again<Cell>(backward, x, q.I, in(q.w_ih), in(q.b_ih), in(q.b_hh), gates, launch);
      backward.tape.gates = gates;
    }
  }
  const ParameterGradients<T> parameters{out(q.grad_w_ih), out(q.grad_w_hh), out(q.grad_b_ih),
                                         out(q.grad_b_hh)};
  if constexpr (Cell::kStates == 2) {
    if (q.w_hr) {
      backward.tape.output = out(q.m), backward.tape.h0 = nullptr;
      return projected_backward<Cell>(backward, projection, q.algorithm, q.chunk, q.levels, x, q.I,
                                      in(q.w_ih), out(q.grad_x), parameters, out(q.grad_w_hr),
                                      launch);
    }
  }
  recurrent_backward<Cell>(backward, q.algorithm, q.chunk, q.levels, x, q.I, in(q.w_ih),
                           out(q.grad_x), parameters, launch);
}

template <typename T>
void run_typed(const Request& request, Launcher& launch) {
  if (!with_cell<T>(request.cell, [&](auto cell) { run<decltype(cell)>(request, launch); })) {
    throw std::runtime_error("unknown cell");
  }
}

}  // namespace
}  // namespace bppsa::cuda

extern "C" int emulate_recurrent(bppsa::cuda::Request* request) {
  bppsa::cuda::Launcher launch;
  launch.shared_limit = request->shared_limit;
  launch.processors = static_cast<int>(request->processors);
  launch.scratch_limit = request->scratch_limit;
  launch.grid_limit = request->grid_limit;
  bppsa::emulator::Device::get().seed = static_cast<unsigned>(request->seed);
  bppsa::emulator::Device::get().untrusted = 0;
  std::string answer;
  int failed = 0;
  try {
    std::string(request->dtype) == "float32" ? bppsa::cuda::run_typed<float>(*request, launch)
                                             : bppsa::cuda::run_typed<double>(*request, launch);
    for (const std::string& name : launch.launches) answer += name + "\n";
  } catch (const std::exception& error) {
    answer = error.what();
    failed = 1;
  }
  request->untrusted = bppsa::emulator::Device::get().untrusted;
  std::snprintf(request->launches, sizeof(request->launches), "%s", answer.c_str());
  return failed;
}
