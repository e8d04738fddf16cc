# _C_cuda: built where bppsa_cuda says so (cmake/options.cmake), with or without a GPU.

# Numbers, as 80 for a compute capability of 8.0. What is compiled for 80 runs on 86 and 89 too. Each
# source is translated to PTX once, for 80 (and apart from that for what is older, or by itself if
# it needs 90), and from there to code for every architecture: of a build's time the translation is
# more than half. The PTX serves later ones. The first of the recurrent kernels' architectures is the
# least compute capability that bppsa_lightning/ops/recurrent.py takes them to run on.
set(BPPSA_CUDA_ARCHITECTURES "75;80;90;100;120" CACHE STRING "CUDA architectures of _C_cuda")
set(BPPSA_CUDA_RECURRENT_ARCHITECTURES "80;90" CACHE STRING "those of its recurrent kernels")

if(NOT bppsa_cuda)
  message(STATUS "bppsa_lightning: no CUDA kernels (${bppsa_cuda_why})")
  return()
endif()

# A complete build is complete only as far as its machine has the tools; who says ON means it.
function(bppsa_no_cuda reason)
  if(BPPSA_CUDA STREQUAL "AUTO")
    message(STATUS "bppsa_lightning: no CUDA kernels (${reason})")
  else()
    message(FATAL_ERROR "bppsa_lightning: BPPSA_CUDA=${BPPSA_CUDA}, but ${reason}")
  endif()
endfunction()

# An nvcc on PATH may be a wrapper script, which confuses CMake's search for the toolkit: ask
# it where the toolkit's own nvcc is.
if(DEFINED ENV{CUDACXX})
  set(BPPSA_NVCC "$ENV{CUDACXX}")
else()
  find_program(BPPSA_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
endif()
if(NOT BPPSA_NVCC)
  bppsa_no_cuda("no nvcc was found: put it on PATH or set CUDACXX")
  return()
endif()
execute_process(COMMAND ${BPPSA_NVCC} --dryrun -x cu -c /dev/null -o /dev/null
                ERROR_VARIABLE dryrun OUTPUT_QUIET)
string(REGEX MATCH "_HERE_=([^\n]*)" _ "${dryrun}")
if(NOT EXISTS "${CMAKE_MATCH_1}/nvcc")
  bppsa_no_cuda("${BPPSA_NVCC} does not work")
  return()
endif()
message(STATUS "bppsa_lightning: CUDA kernels (${bppsa_cuda_why})")
set(CMAKE_CUDA_COMPILER "${CMAKE_MATCH_1}/nvcc")
set(CMAKE_CUDA_ARCHITECTURES OFF)  # bppsa_architectures says which
set(CMAKE_CUDA_STANDARD 20)
enable_language(CUDA)

# Code for `architectures`, rising, by way of PTX for the first of them, which is kept.
function(bppsa_architectures target)
  list(GET ARGN 0 first)
  list(TRANSFORM ARGN PREPEND "sm_" OUTPUT_VARIABLE code)
  list(JOIN code "," code)
  target_compile_options(
    ${target} PRIVATE "--generate-code=arch=compute_${first},code=[compute_${first},${code}]")
endfunction()

# The same for targets of any architectures: those older than 80 and the others are translated apart.
function(bppsa_split architectures)
  list(SORT architectures COMPARE NATURAL)
  set(old ${architectures})
  list(FILTER old INCLUDE REGEX "^[1-7][0-9]$")
  set(new ${architectures})
  list(FILTER new EXCLUDE REGEX "^[1-7][0-9]$")
  foreach(target ${ARGN})
    foreach(group old new)
      if(${group})
        bppsa_architectures(${target} ${${group}})
      endif()
    endforeach()
  endforeach()
endfunction()

set(clusters ${BPPSA_CUDA_RECURRENT_ARCHITECTURES})
list(FILTER clusters EXCLUDE REGEX "^[1-8][0-9]$")
if(clusters)
  list(SORT clusters COMPARE NATURAL)
  list(GET clusters 0 BPPSA_CLUSTERS_FROM)
else()  # never launched, but linked
  set(clusters ${BPPSA_CUDA_RECURRENT_ARCHITECTURES})
  list(SORT clusters COMPARE NATURAL)
  set(BPPSA_CLUSTERS_FROM 0)
endif()

set(recurrent_targets)
foreach(cell ${cells})
  add_library(cuda_${cell} OBJECT cuda/recurrent_cell.cu)
  bppsa_compile_cell(cuda_${cell} ${cell} ../cells)
  list(APPEND recurrent_targets cuda_${cell})
endforeach()
add_library(cuda_clusters OBJECT cuda/recurrent_clusters.cu)
add_library(_C_cuda MODULE cuda/indrnn.cu cuda/jacobians.cu cuda/library.cu cuda/recurrent.cu cuda/regularised.cu
                           cuda/scans.cu $<TARGET_OBJECTS:cuda_clusters>)
foreach(target ${recurrent_targets})
  target_sources(_C_cuda PRIVATE $<TARGET_OBJECTS:${target}>)
endforeach()
set_target_properties(${recurrent_targets} cuda_clusters PROPERTIES POSITION_INDEPENDENT_CODE ON)
set_target_properties(_C_cuda PROPERTIES PREFIX "" CUDA_RUNTIME_LIBRARY Static)

bppsa_architectures(cuda_clusters ${clusters})
bppsa_split("${BPPSA_CUDA_RECURRENT_ARCHITECTURES}" ${recurrent_targets})
bppsa_split("${BPPSA_CUDA_ARCHITECTURES}" _C_cuda)
# As on the CPU (simd/denormals.h), numbers too small for a normal float count as zero: or a gradient
# that fades would stay at the smallest of all where a step takes it times more than a half.
foreach(target ${recurrent_targets} cuda_clusters)
  target_compile_options(${target} PRIVATE --ftz=true)
endforeach()
list(JOIN BPPSA_CUDA_RECURRENT_ARCHITECTURES "," architectures)
target_compile_definitions(_C_cuda PRIVATE "BPPSA_RECURRENT_ARCHITECTURES=\"${architectures}\"")
foreach(target ${recurrent_targets} cuda_clusters _C_cuda)
  target_compile_definitions(${target} PRIVATE USE_CUDA BPPSA_CLUSTERS_FROM=${BPPSA_CLUSTERS_FROM})
  target_compile_options(${target} PRIVATE --threads=2 -Xcompiler=-Wall)
  target_link_libraries(${target} PRIVATE torch_stable)
endforeach()
if(EXISTS ${TORCH_ROOT}/lib/libtorch_cuda.so)
  target_link_libraries(_C_cuda PRIVATE ${TORCH_ROOT}/lib/libtorch_cuda.so)
endif()
install(TARGETS _C_cuda LIBRARY DESTINATION bppsa_lightning)
