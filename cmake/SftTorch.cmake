# LibTorch from the torch wheel, as imported targets of our own: its CMake package asks for a CUDA
# installation and puts its copies of fmt and protobuf before the distribution's.
#
#   sft_torch_cpu    what the engine and sft-rank link
#   sft_torch_cuda   what the CUDA plugin links besides (cmake/SftCuda.cmake)
include_guard(GLOBAL)

file(GLOB sft_site_packages "${SFT_TORCH_VENV}/lib/python3*/site-packages")
set(SFT_TORCH_DIR "${sft_site_packages}/torch" CACHE PATH "The installed torch package")
set(SFT_SITE_PACKAGES "${sft_site_packages}" CACHE PATH "site-packages with the nvidia wheels")
if(NOT EXISTS "${SFT_TORCH_DIR}/lib/libtorch_cpu.so")
  set(sft_missing "${SFT_TORCH_DIR}")
  # Or the next try would look there again, wherever torch has come to lie.
  unset(SFT_TORCH_DIR CACHE)
  unset(SFT_SITE_PACKAGES CACHE)
  message(FATAL_ERROR "no torch in ${sft_missing}: run deploy/bootstrap, or give -DSFT_TORCH_DIR=DIR, "
    "or build without the engine: -DSFT_ENGINE=OFF")
endif()

add_library(sft_torch_headers INTERFACE)
# After every other directory: torch/include holds other versions of fmt and google/protobuf.
target_compile_options(sft_torch_headers INTERFACE
  "SHELL:-idirafter ${SFT_TORCH_DIR}/include"
  "SHELL:-idirafter ${SFT_TORCH_DIR}/include/torch/csrc/api/include")
# at::parallel_for is a template: without OpenMP in our unit it runs on one thread. The run-time is
# torch's own copy, linked below.
target_compile_options(sft_torch_headers INTERFACE
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-fopenmp>)

add_library(sft_torch_cpu INTERFACE)
target_link_libraries(sft_torch_cpu INTERFACE sft_torch_headers
  "-Wl,--push-state,--no-as-needed" "${SFT_TORCH_DIR}/lib/libtorch_cpu.so" "-Wl,--pop-state"
  "${SFT_TORCH_DIR}/lib/libc10.so" "${SFT_TORCH_DIR}/lib/libgomp.so.1")
target_link_options(sft_torch_cpu INTERFACE "-Wl,-rpath,${SFT_TORCH_DIR}/lib"
  "-Wl,-rpath-link,${SFT_TORCH_DIR}/lib:${SFT_SITE_PACKAGES}/nvidia/cu13/lib")
