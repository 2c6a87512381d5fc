# The CUDA compiler and the libraries of the CUDA plugin, from the wheels that torch itself uses.
#
#   sft_cudart sft_cublaslt sft_cudnn sft_nccl   imported libraries and their headers, by full path
#   sft_cudnn_frontend                           cuDNN with the headers that build its graphs
#   sft_torch_cuda                               LibTorch's CUDA half, for host code (.cc) of the plugin
#   sft_cuda_flags                               warnings and options of our .cu files
#
# nvcc is the wheels' (nvidia/cu13/bin), or else the one in PATH or /usr/local/cuda. The run-time
# libraries are always the wheels': a second libcudart in the process would have its own state.
include_guard(GLOBAL)

set(sft_cuda_root "${SFT_SITE_PACKAGES}/nvidia/cu13")
if(NOT CMAKE_CUDA_COMPILER)
  find_program(SFT_NVCC nvcc PATHS "${sft_cuda_root}/bin" NO_DEFAULT_PATH)
  find_program(SFT_NVCC nvcc PATHS /usr/local/cuda/bin)
  if(NOT SFT_NVCC)
    message(FATAL_ERROR "no CUDA compiler in ${sft_cuda_root}/bin, in PATH or in /usr/local/cuda/bin: "
      "run `deploy/bootstrap --cuda`, or build without the CUDA plugin: -DSFT_CUDA=OFF")
  endif()
  set(CMAKE_CUDA_COMPILER "${SFT_NVCC}")
endif()
foreach(file "${sft_cuda_root}/lib/libcudart.so.13" "${SFT_TORCH_DIR}/lib/libtorch_cuda.so")
  if(NOT EXISTS "${file}")
    message(FATAL_ERROR "the CUDA plugin needs ${file}: run `deploy/bootstrap --cuda`, or build "
      "without the CUDA plugin: -DSFT_CUDA=OFF")
  endif()
endforeach()
# nvcc.profile of the wheel looks for device libraries in lib64; the wheel has lib.
if(EXISTS "${sft_cuda_root}/bin/nvcc" AND NOT EXISTS "${sft_cuda_root}/lib64")
  file(CREATE_LINK lib "${sft_cuda_root}/lib64" SYMBOLIC)
endif()

# One CUDA runtime in the process: LibTorch's shared one, linked by path below.
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
set(CMAKE_CUDA_ARCHITECTURES "${SFT_CUDA_ARCHITECTURES}")
enable_language(CUDA)
# CMake 3.25 has no C++20 flags for CUDA.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O3 -lineinfo -DNDEBUG")
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")

add_library(sft_cuda_flags INTERFACE)
target_compile_options(sft_cuda_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra;--Werror=all-warnings>")

function(_sft_cuda_library name file include_dir)
  add_library(${name} INTERFACE)
  if(NOT EXISTS "${file}")
    message(FATAL_ERROR "${file} is missing: run `deploy/bootstrap --cuda`")
  endif()
  target_link_libraries(${name} INTERFACE "${file}")
  target_include_directories(${name} SYSTEM INTERFACE "${include_dir}")
endfunction()

# The toolkit's headers: those of the compiler, which may be newer than the wheels' run-time ones.
set(sft_cuda_include "${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES}")
_sft_cuda_library(sft_cudart "${sft_cuda_root}/lib/libcudart.so.13" "${sft_cuda_include}")
_sft_cuda_library(sft_cublaslt "${sft_cuda_root}/lib/libcublasLt.so.13" "${sft_cuda_include}")
_sft_cuda_library(sft_cudnn "${SFT_SITE_PACKAGES}/nvidia/cudnn/lib/libcudnn.so.9"
  "${SFT_SITE_PACKAGES}/nvidia/cudnn/include")
_sft_cuda_library(sft_nccl "${SFT_SITE_PACKAGES}/nvidia/nccl/lib/libnccl.so.2"
  "${SFT_SITE_PACKAGES}/nvidia/nccl/include")

# Headers only. Without their JSON half: nothing is read or written, and a unit compiles sooner.
set(sft_cudnn_frontend_include "${SFT_SITE_PACKAGES}/include")
if(NOT EXISTS "${sft_cudnn_frontend_include}/cudnn_frontend.h")
  message(FATAL_ERROR "${sft_cudnn_frontend_include}/cudnn_frontend.h is missing: "
    "run `deploy/bootstrap --cuda`")
endif()
_sft_cuda_library(sft_nvrtc "${sft_cuda_root}/lib/libnvrtc.so.13" "${sft_cuda_include}")
add_library(sft_cudnn_frontend INTERFACE)
target_include_directories(sft_cudnn_frontend SYSTEM INTERFACE "${sft_cudnn_frontend_include}")
target_compile_definitions(sft_cudnn_frontend INTERFACE CUDNN_FRONTEND_SKIP_JSON_LIB)
target_link_libraries(sft_cudnn_frontend INTERFACE sft_cudnn sft_nvrtc)

add_library(sft_torch_cuda INTERFACE)
# Debian's g++ links with --as-needed, and our objects name nothing of libtorch_cuda.so: without
# --no-as-needed it is dropped silently and every CUDA call says "without ATen_cuda library".
target_link_libraries(sft_torch_cuda INTERFACE sft_torch_cpu sft_cudart
  "-Wl,--push-state,--no-as-needed" "${SFT_TORCH_DIR}/lib/libtorch_cuda.so" "-Wl,--pop-state"
  "${SFT_TORCH_DIR}/lib/libc10_cuda.so")
target_link_options(sft_torch_cuda INTERFACE
  "-Wl,-rpath-link,${SFT_SITE_PACKAGES}/nvidia/cudnn/lib:${SFT_SITE_PACKAGES}/nvidia/nccl/lib"
  "-Wl,-rpath-link,${SFT_SITE_PACKAGES}/nvidia/nvshmem/lib:${SFT_SITE_PACKAGES}/nvidia/cusparselt/lib")
