// Requests of bppsa::batch_norm and bppsa::batch_norm_backward. x, y, grad: (channels, n),
// contiguous; weight, bias, mean, var: (channels).
#pragma once

#include "../batch_norm.h"
#include "tensors.h"

namespace bppsa {

template <class Request>
Request batch_norm_request(const Tensor& x, const Maybe& weight, double eps, bool relu) {
  STD_TORCH_CHECK(x.dim() == 2 && x.is_contiguous() && x.size(1) >= 1,
                  "x: wanted (channels, n), contiguous");
  Request request{};
  request.storage = values_storage(x, "x");
  request.channels = x.size(0), request.n = x.size(1);
  request.eps = eps, request.relu = relu;
  request.x = x.data_ptr();
  check_operand(weight, "weight", x, {request.channels});
  request.weight = data_or_null(weight);
  return request;
}

}  // namespace bppsa
