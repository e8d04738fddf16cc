#pragma once
// Where kernels go: one device, torch's current stream on it, scratch memory from torch's
// allocator. Nothing here waits for the device, so a scan can be captured in a CUDA graph. (The
// emulator has a launcher of its own.)

#include "platform.cuh"

#ifdef __CUDACC__

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/shim_utils.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

// The least compute capability that recurrent_clusters.cu is compiled for, as 90 for 9.0; 0 if for
// none that has clusters (cuda.cmake).
#ifndef BPPSA_CLUSTERS_FROM
#define BPPSA_CLUSTERS_FROM 0
#endif

namespace bppsa::cuda {

template <typename... Doing>
void check(cudaError_t error, const Doing&... doing) {
  if (error != cudaSuccess) (void)cudaGetLastError();  // or the next launch would find it
  STD_TORCH_CHECK(error == cudaSuccess, "bppsa: ", doing..., ": ", cudaGetErrorString(error));
}

class Launcher {
 public:
  /// Launches on the device of `like`, whose current stream is looked up once.
  explicit Launcher(const torch::stable::Tensor& like)
      : like_(like), guard_(like.get_device_index()) {
    const int device = like.get_device_index();
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
    stream_ = static_cast<cudaStream_t>(stream);
    shared_limit = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    processors = attribute(cudaDevAttrMultiProcessorCount, device);
    clusters = BPPSA_CLUSTERS_FROM > 0 && attribute(cudaDevAttrClusterLaunch, device) != 0 &&
               10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
                       attribute(cudaDevAttrComputeCapabilityMinor, device) >=
                   BPPSA_CLUSTERS_FROM;
  }

  /// Uninitialised scratch of `count` numbers. It lives as long as the launcher; torch's allocator
  /// reuses it in stream order, so it may go while kernels that use it still wait in the stream.
  template <typename acc_t>
  acc_t* allocate(int64_t count) {
    constexpr auto dtype = std::is_same_v<acc_t, double> ? torch::headeronly::ScalarType::Double
                                                         : torch::headeronly::ScalarType::Float;
    const std::vector<int64_t> size{count};
    scratch_.push_back(torch::stable::new_empty(like_, size, dtype));
    return static_cast<acc_t*>(scratch_.back().mutable_data_ptr());
  }

  /// Calls run(); what it allocates goes back to torch's allocator after it.
  template <class Run>
  void with_scratch(Run run) {
    const auto before = static_cast<std::ptrdiff_t>(scratch_.size());
    run();
    scratch_.erase(scratch_.begin() + before, scratch_.end());
  }

  /// Enqueues `kernel` with a block for every task, up to the limit of a grid: kernels loop over
  /// their tasks by gridDim.x.
  template <typename... Parameters, typename... Arguments>
  void operator()(const char* name, void (*kernel)(Parameters...), int64_t tasks, int threads,
                  size_t shared, const Arguments&... arguments) {
    in_clusters(1, name, kernel, tasks, threads, shared, arguments...);
  }

  /// The same with `size` blocks, a cluster, for every task.
  template <typename... Parameters, typename... Arguments>
  void in_clusters(int size, const char* name, void (*kernel)(Parameters...), int64_t tasks,
                   int threads, size_t shared, const Arguments&... arguments) {
    if (tasks == 0) return;
    if (shared > kSharedWithoutOptIn) {
      // Always the same value: host threads that launch with different needs do not disturb each
      // other.
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_limit)),
            "asking for large shared memory for kernel ", name);
    }
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = size;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(std::min(tasks, kGridLimit / size) * size));
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream_;
    config.attrs = &cluster;
    config.numAttrs = size > 1 ? 1 : 0;
    check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
          "launching kernel ", name, " with ", config.gridDim.x, " blocks of ", threads,
          " threads and ", shared, " bytes of shared memory, in clusters of ", size);
  }

  size_t shared_limit;                     // bytes of shared memory one block can have
  int processors;                          // streaming multiprocessors
  bool clusters;                           // whether blocks can share a cluster, and are built to
  size_t scratch_limit = size_t{1} << 30;  // bytes of products to hold at a time

 private:
  static constexpr size_t kSharedWithoutOptIn = 48 * 1024;
  static constexpr int64_t kGridLimit = 2147483647;

  static int attribute(cudaDeviceAttr which, int device) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, device), "reading a device attribute");
    return value;
  }

  const torch::stable::Tensor& like_;
  torch::stable::accelerator::DeviceGuard guard_;
  cudaStream_t stream_ = nullptr;
  std::vector<torch::stable::Tensor> scratch_;
};

}  // namespace bppsa::cuda

#endif
