// The schemas of all operators. Each backend registers its own kernels: on the CPU the sources in
// cpu/, on CUDA cuda/library.cu, in a library of its own.
#include <torch/csrc/stable/library.h>

#include <string>

#include "cpu/levels/table.h"

namespace {

std::string cpu_capability() { return bppsa::kernels().level; }

}  // namespace

STABLE_TORCH_LIBRARY(bppsa, m) {
  m.def(
      "reverse_scan(Tensor jac_t, Tensor grad, str algorithm, int chunk, int levels, "
      "bool adjoint) -> Tensor");
  m.def(
      "diagonal_scan(Tensor decay, Tensor grad, str algorithm, int chunk, int levels, "
      "bool adjoint) -> Tensor");

  m.def(
      "recurrent(str cell, Tensor x, Tensor? h0, Tensor? c0, Tensor? w_ih, Tensor w_hh, "
      "Tensor? b_ih, Tensor? b_hh, Tensor? w_hr, bool reverse, int keep, str algorithm) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "recurrent_backward(str cell, Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n, "
      "Tensor output, Tensor kept, Tensor x, Tensor? h0, Tensor? c0, Tensor? w_ih, Tensor w_hh, "
      "Tensor? b_ih, Tensor? b_hh, Tensor? w_hr, bool reverse, str algorithm, int chunk, "
      "int levels, int wanted) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "recurrent_ragged(str cell, Tensor x, Tensor? h0, Tensor? c0, Tensor? w_ih, Tensor w_hh, "
      "Tensor? b_ih, Tensor? b_hh, Tensor? w_hr, int keep, Tensor lengths, int groups) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "recurrent_ragged_backward(str cell, Tensor? grad_output, Tensor? grad_c_n, Tensor output, "
      "Tensor kept, Tensor x, Tensor? h0, Tensor? c0, Tensor? w_ih, Tensor w_hh, Tensor? b_ih, "
      "Tensor? b_hh, Tensor? w_hr, Tensor lengths, int groups, int wanted) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "recurrent_jacobian(str cell, Tensor output, Tensor kept, Tensor x, Tensor? h0, Tensor? c0, "
      "Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh, Tensor? w_hr, bool reverse) -> "
      "Tensor");
  m.def(
      "recurrent_room(str cell, Tensor x, Tensor w_ih, Tensor w_hh, Tensor? w_hr, int keep) -> "
      "(Tensor, Tensor)");
  m.def(
      "recurrent_into(str cell, Tensor x, Tensor? h0, Tensor? c0, Tensor w_ih, Tensor w_hh, "
      "Tensor? b_ih, Tensor? b_hh, Tensor? w_hr, Tensor(a!)? output, Tensor(b!)? kept) -> "
      "(Tensor, Tensor)");
  m.def(
      "recurrent_backward_into(str cell, Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n, "
      "Tensor output, Tensor kept, Tensor x, Tensor? h0, Tensor? c0, Tensor w_ih, Tensor w_hh, "
      "Tensor? b_ih, Tensor? b_hh, Tensor? w_hr, Tensor(a!)? grad_x, int wanted) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "recurrent_windows(str cell, Tensor x, Tensor? h0, Tensor? c0, Tensor w_ih, Tensor w_hh, "
      "Tensor? b_ih, Tensor? b_hh, Tensor? w_hr, Tensor(a!) output, Tensor(b!)? kept, int head, "
      "int windows, int span, int warm, Tensor level_h, Tensor? level_c, float size_h, "
      "float size_c) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "recurrent_windows_backward(str cell, Tensor? grad_output, Tensor? grad_h_n, "
      "Tensor? grad_c_n, Tensor output, Tensor kept, Tensor x, Tensor? h0, Tensor? c0, "
      "Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh, Tensor? w_hr, Tensor(a!)? grad_x, "
      "int wanted, int head, int windows, int span, int back, float roundings) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def("states_met(Tensor guessed, Tensor right, Tensor level, float size) -> int[]");

  m.def(
      "indrnn(Tensor x, Tensor? h0, Tensor u, str nonlinearity, bool reverse, str algorithm) -> "
      "(Tensor, Tensor)");
  m.def(
      "indrnn_backward(Tensor? grad_output, Tensor? grad_h_n, Tensor output, Tensor? h0, Tensor u, "
      "str nonlinearity, bool reverse, int wanted) -> (Tensor, Tensor, Tensor)");

  m.def("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
  m.def(
      "linear_backward(Tensor grad, Tensor x, Tensor weight, int wanted) -> "
      "(Tensor, Tensor, Tensor)");

  m.def("random_mask(Tensor seed, SymInt[] size, float p) -> Tensor");
  m.def("bernoulli(Tensor(a!) state, SymInt[] size, float p) -> Tensor");
  m.def("masked(Tensor x, Tensor mask, float scale) -> Tensor");
  m.def(
      "regularised(str cell, Tensor x, Tensor? h0, Tensor? c0, Tensor w_hh, Tensor? b_hh, "
      "Tensor? norm_hh, Tensor? norm_c, Tensor? b_c, Tensor? w_ih, Tensor? b_ih, "
      "Tensor? norm_ih, Tensor? enters, Tensor? kept_h, Tensor? kept_c, float zoneout, "
      "bool reverse, bool saves) -> "
      "(Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "regularised_backward(str cell, Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n, "
      "Tensor output, Tensor saved, Tensor? x, Tensor? h0, Tensor? c0, Tensor w_hh, Tensor? b_hh, "
      "Tensor? norm_hh, Tensor? norm_c, Tensor? b_c, Tensor? w_ih, Tensor? b_ih, "
      "Tensor? norm_ih, Tensor? enters, Tensor? kept_h, Tensor? kept_c, float zoneout, "
      "bool reverse, int wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, "
      "Tensor, Tensor, Tensor, Tensor)");

  m.def(
      "convolution_pattern(Tensor keep, int[] y, int[] x, int groups) -> "
      "(Tensor, Tensor, Tensor, Tensor)");
  m.def("pooling_axis(Tensor like, int[] geometry) -> (Tensor, Tensor)");
  m.def(
      "window_pattern(Tensor first_y, Tensor out_y, Tensor first_x, Tensor out_x, int channels, "
      "int out_height, int out_width) -> (Tensor, Tensor)");
  m.def(
      "max_pool_values(Tensor x, Tensor first_y, Tensor out_y, Tensor first_x, Tensor out_x, "
      "int out_height, int out_width, int[] pool_y, int[] pool_x) -> Tensor");
  m.def("elementwise_values(Tensor x, str function, float slope) -> Tensor");
  m.def(
      "weight_values(Tensor weight, Tensor source, Tensor first, Tensor crow, int entries) -> "
      "Tensor");

  m.def(
      "count_product(Tensor a_crow, Tensor a_col, Tensor b_crow, Tensor b_col, int cols) -> "
      "(Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "fill_product(Tensor a_crow, Tensor a_col, Tensor b_crow, Tensor b_col, int cols, "
      "Tensor row_size, Tensor products, Tensor owner) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "multiply_csr(Tensor a_crow, Tensor a_col, Tensor a, Tensor b_crow, Tensor b_col, Tensor b, "
      "Tensor crow, Tensor program, Tensor positions, int entries, int longest, bool b_single, "
      "bool side_by_side) -> Tensor");
  m.def("apply_csr(Tensor crow, Tensor col, Tensor values, Tensor x) -> Tensor");

  m.def(
      "sparse_conv2d(Tensor x, Tensor values, Tensor? bias, Tensor rows, Tensor entries, "
      "Tensor rows_t, Tensor entries_t, Tensor order_t, int[] kernel, int[] stride, "
      "int[] padding, int[] dilation, int groups, bool relu=False, bool pool=False) "
      "-> (Tensor, Tensor)");
  m.def(
      "sparse_conv2d_backward(Tensor grad, Tensor? output, Tensor? places, Tensor x, "
      "Tensor values, Tensor rows, Tensor entries, Tensor rows_t, Tensor entries_t, "
      "Tensor order_t, int[] kernel, int[] stride, int[] padding, int[] dilation, int wanted) "
      "-> (Tensor, Tensor, Tensor)");
  m.def(
      "batch_norm(Tensor x, Tensor? weight, Tensor? bias, float eps, bool relu) -> "
      "(Tensor, Tensor, Tensor)");
  m.def(
      "batch_norm_backward(Tensor grad, Tensor x, Tensor y, Tensor? weight, Tensor mean, "
      "Tensor var, float eps, bool relu) -> (Tensor, Tensor, Tensor)");
  m.def("take_surviving(Tensor weight, Tensor index) -> Tensor");
  m.def("put_surviving(Tensor values, Tensor index, int size) -> Tensor");

  m.def("cpu_capability() -> str");
  m.def("set_crew(str mode) -> ()");
  m.def("crew_regions() -> int[]");
}

STABLE_TORCH_LIBRARY_IMPL(bppsa, CompositeExplicitAutograd, m) {
  m.impl("cpu_capability", TORCH_BOX(&cpu_capability));
}
