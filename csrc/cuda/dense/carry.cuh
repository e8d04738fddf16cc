#pragma once
// The carry phase: through the products of segments, matrix-vector only, from the carry of the last
// segment of a group to the carries of all segments of the group.
//
// With (A_k | b_k) the product of node k,
//   carry(k-1) = A_k carry(k) + b_k        (or a walk over its steps where A_k is not trusted).
// A group is a run of `group` nodes; a block works on one (group, sample). In the chunked scan and
// at the roots of a tree there is one group; on the way down a tree the groups are the pairs of
// children, and their incoming carries are those of their parents. The first node of a group passes
// its carry to nobody here, so its product is not read: no product of a node 0 is ever needed.

#include "../../scan/trust.h"
#include "../device/untrusted.cuh"
#include "replay.cuh"

namespace bppsa::cuda {

// The visit of a walk over products: each carry it reaches is stored, until a product is not
// trusted. A product (A, b) is trusted with a carry c only if
//   - A and b are finite and max|A| <= large,
//   - A c + b is finite,
//   - not max|A| < tiny while max|c| > 1: c may bring back what A has lost,
// with the numbers of scan/trust.h. Non-finite entries need no test of their own: an infinite one
// is > large, a NaN one, and any non-finite b, shows in a row of A c + b.
template <typename acc_t>
struct Audit {
  acc_t* carry;  // the carry of node k goes to carry + k * node_stride
  int64_t node_stride;
  int H;
  acc_t peak = 0, carry_peak = 0;
  bool finite = true;

  BPPSA_DEVICE Audit(acc_t* carry, int64_t node_stride, int H)
      : carry(carry), node_stride(node_stride), H(H) {}

  BPPSA_DEVICE void seen(acc_t a, acc_t x) {
    peak = fabs(a) > peak ? fabs(a) : peak;
    carry_peak = fabs(x) > carry_peak ? fabs(x) : carry_peak;
  }
  BPPSA_DEVICE void row(int64_t, int, acc_t y) { finite = finite && y - y == 0; }

  BPPSA_DEVICE bool close(int64_t node, const acc_t* next) {
    bool trusted = !__syncthreads_or(!finite || peak > TrustedMatrix<acc_t>::large);
    if (__syncthreads_and(peak < TrustedMatrix<acc_t>::tiny)) {
      trusted = !__syncthreads_or(carry_peak > 1) && trusted;
    }
    if (trusted) {
      for (int r = threadIdx.x; r < H; r += blockDim.x) {
        carry[(node - 1) * node_stride + r] = next[r];
      }
    }
    peak = carry_peak = 0;
    return trusted;
  }
};

/// The products as the steps of a chain of their own.
template <typename acc_t>
BPPSA_BOTH DenseChain<acc_t> chain_of(const Products<acc_t>& products) {
  const int64_t H = products.N, size = products.size();
  return {{products.data, products.B * size, size, 1, products.N},
          {products.data + H * H, products.B * size, size, 1},
          products.nodes,
          products.B,
          products.N};
}

/// Carries of nodes last-1 … first of one sample; panes.now holds the carry of node last-1.
template <class Shape, typename scalar_t>
BPPSA_DEVICE void carry_group(const DenseChain<scalar_t>& chain, int64_t span,
                              const DenseChain<Acc<scalar_t>>& products, int64_t last,
                              int64_t first, Panes<Acc<scalar_t>>& panes, Acc<scalar_t>* carry,
                              int64_t node_stride) {
  using acc_t = Acc<scalar_t>;
  const Segments segments{chain.T, span};
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
      walk<Shape>(chain, segments.hi(node), segments.lo(node), panes, silent);
      store(--node);
    }
  }
}

template <typename scalar_t, class Shape>
__global__ void __launch_bounds__(Shape::kWalkThreads)
    carry_kernel(DenseChain<scalar_t> chain, int64_t span, Products<Acc<scalar_t>> products,
                 int64_t group, Carries<Acc<scalar_t>> incoming, Carries<Acc<scalar_t>> carries) {
  using acc_t = Acc<scalar_t>;
  const int64_t groups = ceil_div(products.nodes, group);
  Panes<acc_t> panes(reinterpret_cast<acc_t*>(shared_memory()), chain.H);
  for (int64_t task = blockIdx.x; task < groups * chain.B; task += gridDim.x) {
    const int64_t p = task / chain.B, b = task % chain.B;
    const DenseChain<scalar_t> own = chain.from_sample(b);
    panes.fill(chain.H, [&](int r) {
      return incoming ? incoming(p, b)[r] : static_cast<acc_t>(own.grad(own.T, r));
    });
    carry_group<Shape>(own, span, chain_of(products).from_sample(b),
                       smaller((p + 1) * group, products.nodes), p * group, panes, carries(0, b),
                       chain.B * chain.H);
    __syncthreads();  // the next task reuses the shared memory
  }
}

/// Fills `carries` for every node of `products`. The carry that enters group p is incoming(p, b),
/// or u[T] where incoming is null.
template <typename scalar_t>
void carry(const DenseChain<scalar_t>& chain, int64_t span, const Products<Acc<scalar_t>>& products,
           int64_t group, const Carries<Acc<scalar_t>>& incoming,
           const Carries<Acc<scalar_t>>& carries, Launcher& launch) {
  with_shape(chain.H, [&](auto shape) {
    using Shape = decltype(shape);
    launch("carry", carry_kernel<scalar_t, Shape>, ceil_div(products.nodes, group) * chain.B,
           walk_threads<Shape>(chain.H, chain_of(products).jac_t.columns_fast()),
           walk_shared(chain.H, sizeof(Acc<scalar_t>)), chain, span, products, group, incoming,
           carries);
  });
}

}  // namespace bppsa::cuda
