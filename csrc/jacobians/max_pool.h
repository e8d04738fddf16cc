// Which pixel a window of a max-pooling takes, written once for every device. Always inlined: no
// symbol is shared between instruction sets.
#pragma once

#include "../requests/everywhere.h"
#include "../requests/jacobians.h"

namespace bppsa {

// The first of the largest, the last NaN if there is one, as in PyTorch; -1 if the window meets no
// pixel. input (y.size, x.size) is the plane of the window (oy, ox).
template <typename T>
BPPSA_EVERYWHERE int32_t argmax_of_window(const MaxPoolRequest& request, const T* input, int64_t oy,
                                          int64_t ox) {
  const PoolAxis &py = request.pool_y, &px = request.pool_x;
  T best = 0;
  int32_t where = -1;
  for (int64_t ky = 0; ky < py.kernel; ++ky) {
    const int64_t y = oy * py.stride - py.padding + ky * py.dilation;
    if (y < 0 || y >= request.y.size) continue;
    for (int64_t kx = 0; kx < px.kernel; ++kx) {
      const int64_t x = ox * px.stride - px.padding + kx * px.dilation;
      if (x < 0 || x >= request.x.size) continue;
      const int64_t pixel = y * request.x.size + x;
      const T value = input[pixel];
      if (where < 0 || value > best || value != value) best = value, where = int32_t(pixel);
    }
  }
  return where;
}

}  // namespace bppsa
