// The recurrent layers' kernels of one instruction set, for one row of cells/list.h (BPPSA_ROW,
// with the formula BPPSA_CELL of BPPSA_CELL_FILE) and dtype (BPPSA_REAL): a source of its own each,
// so that they compile side by side, and again only for their own formula.
#include BPPSA_CELL_FILE

#include "../../cells/list.h"
#include "../../recurrent/backward.h"
#include "../../recurrent/forward.h"
#include "../../recurrent/jacobian.h"

namespace bppsa::BPPSA_ISA {

using Cell = CellOf<BPPSA_CELL, BPPSA_REAL>;
constexpr CellRow kRow = row_of(CellKind::BPPSA_ROW);
static_assert(Cell::kGates == kRow.gates && Cell::kStates == kRow.states &&
                  Cell::kKept == kRow.kept,
              "the row in cells/list.h does not agree with its formula");
static_assert(Cell::kRows == Cell::kFirstRecurrentRow + Cell::kGates,
              "the last kGates rows of d go with W_hh");

template void layer_forward<Cell>(const RecurrentForwardRequest&, const Parallel&);
template void layer_backward<Cell>(const RecurrentBackwardRequest&, const Plan&, const Parallel&);
template void layer_jacobian<Cell>(const RecurrentJacobianRequest&, const Parallel&);

}  // namespace bppsa::BPPSA_ISA
