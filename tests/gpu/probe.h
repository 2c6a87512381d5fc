#pragma once

#include "worker/engine/kernels/ops.h"

// Functions of libsft_gpu_probe.so, which links LibTorch's CUDA half and is opened at run time, as
// libsft_cuda.so is. Each returns nullptr when all went well, else what did not, as static text
// that lives until the next call.

extern "C" {
// Captures a product, our SwiGLU and our RMSNorm (those of the plugin) as one CUDA graph, replays
// it on other inputs and compares with the same work done eagerly.
const char* sft_probe_cuda_graph(const sft::engine::ops::Implementations& operations);
// An NCCL process group of one rank on device 0: all-reduce, uneven gather, captured all-reduce.
const char* sft_probe_nccl_alone();
}
