#pragma once
// A regularised layer (recurrent/regularised.h says what it computes) on CUDA: a block walks a
// sample from end to end, its state in shared memory, W_hh read from the caches. What normalises a
// row has to wait for all of its threads anyway; a step takes a few barriers of one block, and
// samples never wait for each other. The weights' gradients are one product over all steps behind
// the walk.

#include "regularised_backward.cuh"
#include "regularised_forward.cuh"

namespace bppsa::cuda {

/// Calls run(kind), kind as `RegularisedView`, with what a request asks for.
template <class Run>
void with_regularised(const RegularisedRequest& request, const Run& run) {
  const auto with = [&](auto zero) {
    using Real = decltype(zero);
    const bool normalised = request.norm_hh;
    if (request.cell == CellKind::lstm)
      normalised ? run(Lstm{}, std::true_type{}, Real{}) : run(Lstm{}, std::false_type{}, Real{});
    else if (request.cell == CellKind::gru)
      normalised ? run(Gru{}, std::true_type{}, Real{}) : run(Gru{}, std::false_type{}, Real{});
    else if (request.cell == CellKind::peephole)
      run(Peephole{}, std::false_type{}, Real{});
    else if (request.cell == CellKind::ligru)
      run(LiGru{}, std::false_type{}, Real{});
    else if (request.cell == CellKind::rnn_relu)
      run(RnnRelu{}, std::false_type{}, Real{});
    else
      run(RnnTanh{}, std::false_type{}, Real{});
  };
  request.storage == Storage::f64 ? with(double{}) : with(float{});
}

}  // namespace bppsa::cuda
