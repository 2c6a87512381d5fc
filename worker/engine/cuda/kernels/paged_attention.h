// Launcher of attention to keys and values in pages; see launch.h for what all launchers keep to.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/engine/cuda/kernels/launch.h"

namespace sft::engine::cuda {

// Largest head that the kernel takes.
inline constexpr int kMostPagedHead = 512;

// Sizes of PagedAttention (worker/engine/kernels/operations.def).
struct PagedShape {
  int64_t tokens = 0;
  int32_t heads = 0, kv_heads = 0;
  int32_t size = 0;  // of a head, at most kMostPagedHead
  int32_t page = 0;  // tokens of a page
  int64_t table_width = 0;
  int64_t window = 0;
  float scale = 0.0f;
  const float* sinks = nullptr;  // a score of each head that has no value; null: none
};

// Copies `width` elements of each row of keys and values to row slots[row] of the pages.
cudaError_t LaunchWritePages(ElementType type, int64_t rows, int64_t width, const int64_t* slots,
                             ConstRows keys, ConstRows values, void* k_pages, void* v_pages,
                             cudaStream_t stream);

// Rows of q and out are tokens. Any heads, of either type.
cudaError_t LaunchPagedAttention(ElementType type, const PagedShape& shape, ConstRows q,
                                 const void* k_pages, const void* v_pages, const int32_t* tables,
                                 const int64_t* places, MutableRows out, cudaStream_t stream);

// The same on tensor cores, of bf16, where q and out are aligned to 16 bytes: for single tokens,
// with `scratch` of so many floats (0: there is no kernel for these heads), and for pieces of
// prompts, whose tokens follow each other. A token at position -1 is padding and gets zeros.
int64_t PagedDecodeScratch(const PagedShape& shape);
cudaError_t LaunchPagedDecode(const PagedShape& shape, ConstRows q, const void* k_pages,
                              const void* v_pages, const int32_t* tables, const int64_t* places,
                              float* scratch, MutableRows out, cudaStream_t stream);
bool HasPagedPrefill(const PagedShape& shape);
cudaError_t LaunchPagedPrefill(const PagedShape& shape, ConstRows q, const void* k_pages,
                               const void* v_pages, const int32_t* tables, const int64_t* places,
                               MutableRows out, cudaStream_t stream);

}  // namespace sft::engine::cuda
