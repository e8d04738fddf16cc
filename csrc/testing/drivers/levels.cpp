// The CPU kernels of one level without torch, as a program: for machines that are emulated, where
// there is no torch. Not part of any library that is installed.
//
//   levels scan f32|f64 ALGORITHM CHUNK LEVELS T B H
//     reads   jac_t (T, B, H, H), grad (T + 1, B, H)
//     writes  g (T + 1, B, H)
//   levels layer f32|f64 ALGORITHM CHUNK LEVELS T B H I CELL
//     reads   x (T, B, I), h0 (B, H), c0 (B, H), w_ih (GH, I), w_hh (GH, H), b_ih (GH), b_hh (GH),
//             grad (T, B, H); c0 where the cell has a c
//     writes  output (T, B, H), grad_x, grad_h0, grad_c0, grad_w_ih, grad_w_hh, grad_b_ih,
//     grad_b_hh
//
// Numbers are read and written as they lie in memory. The level goes to the standard error stream.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../cells/list.h"
#include "../../cpu/levels/table.h"

namespace {

using namespace bppsa;

struct Arguments {
  char** next;
  std::string word() {
    if (!*next) throw std::runtime_error("too few arguments");
    return *next++;
  }
  int64_t number() { return std::stoll(word()); }
};

std::vector<char> read_from_input(int64_t bytes) {
  std::vector<char> numbers(bytes);
  if (std::fread(numbers.data(), 1, bytes, stdin) != size_t(bytes))
    throw std::runtime_error("the input ends too early");
  return numbers;
}

void write(const std::vector<char>& numbers) {
  std::fwrite(numbers.data(), 1, numbers.size(), stdout);
}

Plan plan_from(Arguments& arguments) {
  const std::string name = arguments.word();
  const auto algorithm = name == "linear"    ? Algorithm::linear
                         : name == "chunked" ? Algorithm::chunked
                                             : Algorithm::blelloch;
  const int64_t chunk = arguments.number();
  return {algorithm, chunk, arguments.number()};
}

// One after the other, in shares as of three threads.
const Parallel kParallel{
    3, true, [](int threads, int64_t n, void* context, void (*body)(void*, int64_t, int64_t)) {
      for (int i = 0; i < threads; ++i) body(context, n * i / threads, n * (i + 1) / threads);
    }};

void scan(Storage storage, const Plan& plan, Arguments& arguments) {
  const int64_t T = arguments.number(), B = arguments.number(), H = arguments.number();
  const int64_t bytes = bytes_of(storage), states = B * H;
  const std::vector<char> jac_t = read_from_input(T * states * H * bytes);
  const std::vector<char> grad = read_from_input((T + 1) * states * bytes);
  std::vector<char> out(grad.size());
  DenseScanRequest request{};
  request.storage = storage, request.T = T, request.B = B, request.H = H;
  request.jac_t = jac_t.data(), request.grad = grad.data(), request.out = out.data();
  const int64_t of_jac_t[] = {states * H, H * H, H, 1}, of_grad[] = {states, H, 1};
  std::memcpy(request.jac_stride, of_jac_t, sizeof(of_jac_t));
  std::memcpy(request.grad_stride, of_grad, sizeof(of_grad));
  request.out_step = states;
  kernels().dense_scan(request, plan, kParallel);
  write(out);
}

CellKind cell_of(const std::string& name) {
  for (const CellRow& row : kCells)
    if (name == row.name) return CellKind(&row - kCells);
  throw std::runtime_error("no such cell: " + name);
}

void layer(Storage storage, const Plan& plan, Arguments& arguments) {
  const int64_t T = arguments.number(), B = arguments.number(), H = arguments.number();
  const int64_t I = arguments.number(), bytes = bytes_of(storage);
  const CellKind cell = cell_of(arguments.word());
  const CellRow& row = row_of(cell);
  const int64_t GH = row.gates * H, states_of_c = row.states == 2 ? B * H : 0;
  const std::vector<int64_t> sizes{T * B * I, B * H, states_of_c, GH * I, GH * H, GH, GH};
  std::vector<std::vector<char>> in, out;
  for (const int64_t size : sizes) {
    in.push_back(read_from_input(size * bytes));
    out.emplace_back(size * bytes);
  }
  const std::vector<char> grad = read_from_input(T * B * H * bytes);
  std::vector<char> output(grad.size()), c_n(states_of_c * bytes);

  RecurrentForwardRequest forward{};
  forward.storage = storage, forward.cell = cell;
  forward.T = T, forward.B = B, forward.I = I, forward.H = forward.P = H;
  forward.x = in[0].data(), forward.x_stride[0] = B * I, forward.x_stride[1] = I;
  forward.h0 = in[1].data(), forward.c0 = states_of_c ? in[2].data() : nullptr;
  forward.w_ih = in[3].data(), forward.w_hh = in[4].data();
  forward.b_ih = in[5].data(), forward.b_hh = in[6].data();
  forward.output_stride[0] = B * H, forward.output_stride[1] = H;
  const int64_t units = 16 / bytes, padded = (H + units - 1) / units * units;
  forward.kept_width = row.kept * padded;
  forward.kept_stride[0] = B * forward.kept_width, forward.kept_stride[1] = forward.kept_width;
  std::vector<char> kept(T * B * forward.kept_width * bytes);
  forward.output = output.data(), forward.kept = kept.data(), forward.c_n = c_n.data();
  kernels().recurrent_forward(forward, kParallel);

  RecurrentBackwardRequest backward{};
  static_cast<RecurrentRequest&>(backward) = forward;
  backward.output = output.data(), backward.kept = kept.data(), backward.grad = grad.data();
  backward.grad_stride[0] = B * H, backward.grad_stride[1] = H;
  backward.grad_x = out[0].data();
  backward.grad_x_stride[0] = B * I, backward.grad_x_stride[1] = I;
  backward.grad_h0 = out[1].data();
  backward.grad_c0 = states_of_c ? out[2].data() : nullptr;
  backward.grad_w_ih = out[3].data(), backward.grad_w_hh = out[4].data();
  backward.grad_b_ih = out[5].data(), backward.grad_b_hh = out[6].data();
  kernels().recurrent_backward(backward, plan, kParallel);
  write(output);
  for (const std::vector<char>& numbers : out) write(numbers);
}

}  // namespace

int main(int, char** argv) {
  try {
    Arguments arguments{argv + 1};
    const std::string what = arguments.word();
    const Storage storage = arguments.word() == "f64" ? Storage::f64 : Storage::f32;
    const Plan plan = plan_from(arguments);
    (what == "scan" ? scan : layer)(storage, plan, arguments);
    std::fprintf(stderr, "%s\n", kernels().level);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
