// The recurrent layers' kernels of one instruction set: the cell and dtype of a request.
#include "../../cells/formulas.h"
#include "../../cells/list.h"
#include "../../recurrent/layer_kernels.h"
#include "../../simd/numbers.h"
#include "table.h"

namespace bppsa::BPPSA_ISA {
namespace {

#define CELL(name, formula, gates, states, kept)                                                  \
  static_assert(formula::kGates == gates && formula::kStates == states && formula::kKept == kept, \
                "the row of " #name " in cells/list.h does not agree with its formula");
BPPSA_CELLS(CELL)
#undef CELL

// Calls body(Type<Cell>{}).
template <class Body>
void with_cell(const RecurrentRequest& request, const Body& body) {
  with_real(request.storage, [&](auto real) {
    using Real = typename decltype(real)::type;
    switch (request.cell) {
#define CELL(name, formula, ...) \
  case CellKind::name:           \
    return body(Type<CellOf<formula, Real>>{});
      BPPSA_CELLS(CELL)
#undef CELL
    }
  });
}

}  // namespace

void recurrent_forward(const RecurrentForwardRequest& request, const Parallel& parallel) {
  with_cell(request,
            [&](auto cell) { layer_forward<typename decltype(cell)::type>(request, parallel); });
}

void recurrent_backward(const RecurrentBackwardRequest& request, const Plan& plan,
                        const Parallel& parallel) {
  with_cell(request, [&](auto cell) {
    layer_backward<typename decltype(cell)::type>(request, plan, parallel);
  });
}

}  // namespace bppsa::BPPSA_ISA
