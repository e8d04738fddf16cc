#pragma once
// The carry phase: through the products of segments, matrix-vector only, from the carry of the last
// segment of a group to the carries of all segments of the group.
//
// Node k stands for steps [k * span, min((k + 1) * span, T)); carry(k) is g at its end and
//   carry(k-1) = A_k carry(k) + b_k        (or a walk over its steps where A_k is not trusted).
// A group is a run of `group` nodes; a block works on one (group, sample). In the chunked scan and
// at the roots of a tree there is one group; on the way down a tree the groups are the pairs of
// children, and their incoming carries are those of their parents. The first node of a group passes
// its carry to nobody here, so its product is not read: no product of a node 0 is ever needed.

#include "cell_dense.cuh"
#include "replay.cuh"
#include "trust.cuh"

namespace bppsa::cuda {

// The products of all nodes of all samples: (A | b) column by column, H rows in each of H + 1
// columns.
template <typename acc_t>
struct Products {
  acc_t* data;
  int64_t nodes, B;
  int H;

  BPPSA_BOTH int64_t size() const { return int64_t{H} * (H + 1); }
  BPPSA_BOTH acc_t* operator()(int64_t k, int64_t b) const { return data + (k * B + b) * size(); }

  /// The products as the steps of a chain of their own.
  BPPSA_BOTH Chain<DenseCell<acc_t>> chain() const {
    return {{data, B * size(), size(), 1, H},
            {data + int64_t{H} * H, B * size(), size(), 1},
            nodes,
            B,
            H};
  }
};

/// Carries of nodes last-1 … first of one sample; panes.now holds the carry of node last-1.
template <class Shape, class Cell>
BPPSA_DEVICE void pull_carries(const Chain<Cell>& chain, int64_t span,
                               const Chain<DenseCell<typename Cell::acc_t>>& products, int64_t last,
                               int64_t first, Panes<typename Cell::acc_t>& panes,
                               typename Cell::acc_t* carry, int64_t node_stride) {
  using acc_t = typename Cell::acc_t;
  const auto store = [&](int64_t node) {
    for (int r = threadIdx.x; r < chain.H; r += blockDim.x) {
      carry[node * node_stride + r] = panes.now[r];
    }
  };
  store(last - 1);
  for (int64_t node = last - 1; node > first;) {
    Audit<acc_t> audit(carry, node_stride, chain.H);
    node = walk<Shape>(products, node + 1, first + 1, panes, audit) - 1;
    if (node > first) {
      report_untrusted();
      Silent silent;
      walk<Shape>(chain, smaller((node + 1) * span, chain.T), node * span, panes, silent);
      store(--node);
    }
  }
}

template <class Cell, class Shape>
__global__ void __launch_bounds__(Shape::kWalkThreads)
    carry_kernel(Chain<Cell> chain, int64_t span, Products<typename Cell::acc_t> products,
                 int64_t group, Carries<typename Cell::acc_t> incoming,
                 Carries<typename Cell::acc_t> carries) {
  using acc_t = typename Cell::acc_t;
  const int64_t groups = ceil_div(products.nodes, group);
  Panes<acc_t> panes(reinterpret_cast<acc_t*>(shared_memory()), chain.H);
  for (int64_t task = blockIdx.x; task < groups * chain.B; task += gridDim.x) {
    const int64_t p = task / chain.B, b = task % chain.B;
    const Chain<Cell> own = chain.from_sample(b);
    panes.fill(chain.H, [&](int r) {
      return incoming ? incoming(p, b)[r] : static_cast<acc_t>(own.grad(own.T, r));
    });
    pull_carries<Shape>(own, span, products.chain().from_sample(b),
                        smaller((p + 1) * group, products.nodes), p * group, panes, carries(0, b),
                        chain.B * chain.H);
    __syncthreads();  // the next task reuses the shared memory
  }
}

/// Fills `carries` for every node of `products`. The carry that enters group p is incoming(p, b),
/// or u[T] where incoming is null.
template <class Cell>
void pull(const Chain<Cell>& chain, int64_t span, const Products<typename Cell::acc_t>& products,
          int64_t group, const Carries<typename Cell::acc_t>& incoming,
          const Carries<typename Cell::acc_t>& carries, Launcher& launch) {
  with_shape(chain.H, [&](auto shape) {
    using Shape = decltype(shape);
    launch("carry", carry_kernel<Cell, Shape>, ceil_div(products.nodes, group) * chain.B,
           walk_threads<Shape>(chain.H, products.chain().cell.columns_fast()),
           walk_shared(chain.H, sizeof(typename Cell::acc_t)), chain, span, products, group,
           incoming, carries);
  });
}

}  // namespace bppsa::cuda
