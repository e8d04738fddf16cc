// bppsa::recurrent, bppsa::recurrent_windows and their backwards on CUDA: a layer in one direction;
// the kernels are in recurrent/.
//
//   kept: nothing for a cell whose output is enough. With keep = 2 (T, B, 4 H) numbers, four a unit
//   side by side; then, of a cell with two states, T B H cell states; with w_hr T B H more, what is
//   projected. With keep = 1 (not with w_hr) the cell states alone: the backward computes the four
//   numbers again.

#include "../operators/recurrent_windows_at_once.h"
#include "recurrent/instances.cuh"
#include "recurrent/windows_met.cuh"

namespace bppsa::cuda {
namespace {

struct Device {
  static int64_t kept_width(const RecurrentRequest& request, Keep keep) {
    return keep == Keep::least && request.w_hr ? -1 : kept_width_of(request, keep);
  }

  static void check(const RecurrentRequest& request) {
    STD_TORCH_CHECK(request.H >= 1 && request.H <= kMostUnits, "recurrent: H must be in 1 … ",
                    kMostUnits, ", found ", request.H);
    STD_TORCH_CHECK(request.B <= ((int64_t{1} << 31) - 1) / request.T,
                    "recurrent: T * B must be less than 2^31, found ", request.T, " * ", request.B);
  }

  static Tensor empty(const Tensor& like, Sizes size) { return empty_beside(like, size); }

  static void run(const RecurrentForwardRequest& request, Keep keep, const Tensor& h_n) {
    Launcher launch(h_n);
    const int most = most_units(request, launch.shared_limit);
    STD_TORCH_CHECK(keep == Keep::nothing || request.H <= most, "recurrent: H: found ", request.H,
                    ", wanted at most ", most, " for a backward on this device");
    with_cell(request, [&](auto cell) {
      layer_forward<typename decltype(cell)::type>(request, h_n.data_ptr(), launch);
    });
  }

  static void run(const RecurrentBackwardRequest& request, const Plan& plan, const Tensor& x) {
    STD_TORCH_CHECK(reinterpret_cast<uintptr_t>(request.kept) % 16 == 0,
                    "kept: wanted the very tensor that the forward returned");
    Launcher launch(x);
    with_cell(request, [&](auto cell) {
      layer_backward<typename decltype(cell)::type>(request, plan, launch);
    });
  }

  // Of states, and gradients, of windows: (windows * B, N).
  static void states_met(const Tensor& begun, const Tensor& ended, const void* level, double size,
                         int64_t windows, bool first, int32_t* met) {
    Launcher launch(begun);
    with_numbers_of(begun, [&](auto number) {
      using T = decltype(number);
      cuda::states_met(data<T>(begun), data<T>(ended), windows, begun.size(0) / windows,
                       static_cast<int>(begun.size(1)),
                       StatesNear<T>{static_cast<const T*>(level), static_cast<T>(size)}, first,
                       met, launch);
    });
  }
  static void gradients_met(const Tensor& entered, const Tensor& left, double roundings,
                            int64_t windows, bool first, int32_t* met) {
    Launcher launch(entered);
    with_numbers_of(entered, [&](auto number) {
      using T = decltype(number);
      cuda::gradients_met(data<T>(entered), data<T>(left), windows, entered.size(0) / windows,
                          static_cast<int>(entered.size(1)), static_cast<T>(roundings), first, met,
                          launch);
    });
  }
};

}  // namespace
}  // namespace bppsa::cuda

STABLE_TORCH_LIBRARY_IMPL(bppsa, CUDA, m) {
  m.impl("recurrent", TORCH_BOX(&bppsa::recurrent<bppsa::cuda::Device>));
  m.impl("recurrent_backward", TORCH_BOX(&bppsa::recurrent_backward<bppsa::cuda::Device>));
  m.impl("recurrent_room", TORCH_BOX(&bppsa::recurrent_room<bppsa::cuda::Device>));
  m.impl("recurrent_windows", TORCH_BOX(&bppsa::recurrent_windows_at_once<bppsa::cuda::Device>));
  m.impl("recurrent_windows_backward",
         TORCH_BOX(&bppsa::recurrent_windows_backward_at_once<bppsa::cuda::Device>));
}
