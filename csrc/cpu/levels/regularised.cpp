// The kernels of regularised layers, of one instruction set, by cell, normalisation and dtype.
#include "../../cells/formulas.h"
#include "../../recurrent/regularised_backward.h"
#include "../../recurrent/regularised_forward.h"
#include "../../simd/numbers.h"
#include "table.h"

namespace bppsa::BPPSA_ISA {
namespace {

template <class Cell, bool kNormalised_, typename T_>
struct Kind {
  using Formula = Cell;
  using T = T_;
  static constexpr bool kNormalised = kNormalised_;
};

template <class Body>
void with_kind(const RegularisedRequest& request, const Body& body) {
  with_real(request.storage, [&](auto real) {
    using T = typename decltype(real)::type;
    const bool normalised = request.norm_hh;
    if (request.cell == CellKind::lstm)
      normalised ? body(Kind<Lstm, true, T>{}) : body(Kind<Lstm, false, T>{});
    else if (request.cell == CellKind::gru)
      normalised ? body(Kind<Gru, true, T>{}) : body(Kind<Gru, false, T>{});
    else if (request.cell == CellKind::peephole)
      body(Kind<Peephole, false, T>{});
    else if (request.cell == CellKind::ligru)
      body(Kind<LiGru, false, T>{});
    else if (request.cell == CellKind::rnn_relu)
      body(Kind<RnnRelu, false, T>{});
    else
      body(Kind<RnnTanh, false, T>{});
  });
}

}  // namespace

void regularised_forward(const RegularisedForwardRequest& request, const Parallel& parallel) {
  with_kind(request, [&](auto kind) {
    using K = decltype(kind);
    regularised_forward_of<typename K::Formula, K::kNormalised, typename K::T>(request, parallel);
  });
}

void regularised_backward(const RegularisedBackwardRequest& request, const Parallel& parallel) {
  with_kind(request, [&](auto kind) {
    using K = decltype(kind);
    regularised_backward_of<typename K::Formula, K::kNormalised, typename K::T>(request, parallel);
  });
}

}  // namespace bppsa::BPPSA_ISA
