// The recurrent layers. The dense tree that they share is compiled in.

#include "../../cuda/dense/scan.cuh"
#include "../../cuda/recurrent/layer.cuh"
#include "driver.h"

namespace bppsa::cuda {
namespace {

// Mirrored by ctypes in the tests. Null pointers: absent, or not wanted.
struct Request {
  const char *cell, *dtype;
  int64_t T, B, I, H, P, reverse;
  const void *x, *h0, *c0, *w_ih, *w_hh, *b_ih, *b_hh, *w_hr;
  int64_t x_strides[2], keep;
  void *output, *gates, *c, *m, *h_n, *c_n;
  const char* algorithm;
  int64_t chunk, levels;
  const void *grad_output, *grad_h_n, *grad_c_n;
  int64_t grad_strides[2];
  void *rows, *grad_x, *grad_h0, *grad_c0, *grad_w_ih, *grad_w_hh, *grad_b_ih, *grad_b_hh;
  void* grad_w_hr;
  Device device;
};

template <class Cell>
void run(const Request& q, Launcher& launch) {
  using Real = typename Cell::scalar_t;
  const auto in = [](const void* p) { return static_cast<const Real*>(p); };
  const auto out = [](void* p) { return static_cast<Real*>(p); };
  if (q.H > most_units<Real>(Cell::kGates, launch.shared_limit)) {
    throw std::runtime_error("H: too large for a backward on this device");
  }
  const auto describe = [&](auto& request) {
    request.view.T = q.T, request.view.B = q.B, request.view.H = static_cast<int>(q.H);
    request.view.reverse = q.reverse != 0;
    request.view.w_hh = in(q.w_hh);
    request.x = {in(q.x), q.x_strides[0], q.x_strides[1], q.B};
    request.I = q.I;
    request.projection = {static_cast<int>(q.P), in(q.w_hh), in(q.w_hr), in(q.h0)};
  };
  ForwardRequest<Real> request{};
  describe(request);
  ForwardView<Real>& forward = request.view;
  forward.w_ih = in(q.w_ih), forward.b_ih = in(q.b_ih), forward.b_hh = in(q.b_hh);
  forward.h0 = in(q.h0), forward.c0 = in(q.c0);
  forward.output = out(q.output);
  forward.gates = q.keep == 2 ? static_cast<Quad<Real>*>(q.gates) : nullptr;
  forward.c = out(q.c), forward.h_n = out(q.h_n), forward.c_n = out(q.c_n);
  request.m = out(q.m);
  layer_forward<Cell>(request, launch);

  BackwardRequest<Real> back{};
  describe(back);
  back.w_ih = in(q.w_ih), back.b_ih = in(q.b_ih), back.b_hh = in(q.b_hh);
  back.plan = plan_of(q.algorithm, q.chunk, q.levels);
  BackwardView<Real>& backward = back.view;
  backward.tape = {q.w_hr ? in(q.m) : in(q.output), forward.gates, forward.c,
                   q.w_hr ? nullptr : forward.h0, forward.c0};
  backward.grad_output = in(q.grad_output);
  backward.grad_step = q.grad_strides[0], backward.grad_sample = q.grad_strides[1];
  backward.grad_h_n = in(q.grad_h_n), backward.grad_c_n = in(q.grad_c_n);
  backward.rows = out(q.rows);
  backward.grad_h0 = out(q.grad_h0), backward.grad_c0 = out(q.grad_c0);
  back.grad_x = out(q.grad_x);
  back.parameters = {out(q.grad_w_ih), out(q.grad_w_hh), out(q.grad_b_ih), out(q.grad_b_hh)};
  back.grad_w_hr = out(q.grad_w_hr);
  layer_backward<Cell>(back, launch);
}

void run(const Request& request, Launcher& launch) {
  const auto with = [&](auto zero) {
    using Real = decltype(zero);
    const bool known = with_cell<Real>(request.cell, [&](auto cell) {
      run<decltype(cell)>(request, launch);
    });
    if (!known) throw std::runtime_error("unknown cell");
  };
  std::string(request.dtype) == "float64" ? with(double{}) : with(float{});
}

}  // namespace
}  // namespace bppsa::cuda

extern "C" int emulate(bppsa::cuda::Request* request) {
  return bppsa::cuda::on(request->device, [&](bppsa::cuda::Launcher& launch) {
    bppsa::cuda::run(*request, launch);
  });
}
