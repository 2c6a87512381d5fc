// FP8 (e4m3) of a matrix's columns, transposed: the operands of a product that sums over tokens.
// Two passes over the matrix, since a column's scale is known only when all of it has been read.
#include <algorithm>

#include "worker/engine/cuda/kernels/fp8.cuh"
#include "worker/engine/cuda/kernels/fp8.h"

namespace sft::engine::cuda {
namespace {

constexpr int kThreads = 256;

// ---- the scales ----

constexpr int kVectorsAcross = 16;  // of columns, in a block
constexpr int kRowLanes = kThreads / kVectorsAcross;
constexpr int64_t kRowsPerSlice = 256;
constexpr int64_t kMostSlices = 64;

// A block has kVectorsAcross vectors of columns and one slice of the rows.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    LargestKernel(Fp8Shape shape, int64_t rows_per_slice, const T* __restrict__ x, int64_t stride,
                  float* __restrict__ partials) {
  const int across = static_cast<int>(threadIdx.x) % kVectorsAcross;
  const int lane = static_cast<int>(threadIdx.x) / kVectorsAcross;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kVectorsAcross * N;
  const int64_t column = first_column + across * N;
  const int64_t first = blockIdx.y * rows_per_slice;
  const int64_t last = first + rows_per_slice < shape.rows ? first + rows_per_slice : shape.rows;
  float largest[N] = {};
  if (column < shape.width) {
#pragma unroll 4
    for (int64_t row = first + lane; row < last; row += kRowLanes) {
      const Packed<T, N> held = LoadPacked<T, N>(x + row * stride + column, true);
#pragma unroll
      for (int i = 0; i < N; ++i) largest[i] = fmaxf(largest[i], fabsf(held[i]));
    }
  }
  __shared__ float shared[kRowLanes][kVectorsAcross * N + 1];
#pragma unroll
  for (int i = 0; i < N; ++i) shared[lane][across * N + i] = largest[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kVectorsAcross * N; i += kThreads) {
    if (first_column + i >= shape.width) continue;
    float most = 0.0f;
    for (int r = 0; r < kRowLanes; ++r) most = fmaxf(most, shared[r][i]);
    partials[blockIdx.y * shape.width + first_column + i] = most;
  }
}

__global__ void __launch_bounds__(kThreads)
    ScaleKernel(int64_t width, int64_t slices, const float* __restrict__ partials,
                Fp8Scaling scaling, float* __restrict__ scale) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= width) return;
  float largest = 0.0f;
  for (int64_t slice = 0; slice < slices; ++slice) {
    largest = fmaxf(largest, partials[slice * width + column]);
  }
  scale[column] = ScaleOf(largest, scaling);
}

template <typename T, int N>
void FindScales(Fp8Shape shape, ConstRows x, float* partials, const Fp8Output& out,
                cudaStream_t stream) {
  const int64_t slices = Fp8ColumnPartials(shape);
  const dim3 blocks(static_cast<unsigned>(CeilDiv(shape.width, kVectorsAcross * N)),
                    static_cast<unsigned>(slices));
  LargestKernel<T, N><<<blocks, kThreads, 0, stream>>>(
      shape, CeilDiv(shape.rows, slices), static_cast<const T*>(x.data), x.stride, partials);
  ScaleKernel<<<static_cast<unsigned>(CeilDiv(shape.width, kThreads)), kThreads, 0, stream>>>(
      shape.width, slices, partials, out.scaling, out.scale);
}

// ---- the transpose ----

constexpr int kTile = 128;             // rows and columns of a tile
constexpr int kLanes = 8;              // threads along a row of x
constexpr int kTileWords = kTile / 4;  // words of four rows of x, of one column
static_assert(kThreads == kLanes * kTileWords, "a thread reads a vector of each of four rows");

// Turns a tile: four rows of x make a word of the transpose at a time. Both global sides are read
// and written in whole sectors.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    TransposeKernel(Fp8Shape shape, const T* __restrict__ x, int64_t stride,
                    const float* __restrict__ scales, uint8_t* __restrict__ out, int64_t out_width,
                    int64_t out_stride) {
  constexpr int N = kWide<T>;
  constexpr int kStep = kLanes * N;  // columns that the threads read at a time
  __shared__ alignas(16) uint32_t tile[kTile * kTileWords];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kLanes, word = thread / kLanes;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kTile;
#pragma unroll
  for (int step = 0; step < kTile; step += kStep) {
    const int own = step + lane * N;  // of the tile's columns
    const int64_t column = first_column + own;
    Packed<T, N> held[4] = {};
    float inverse[N] = {};
    if (column < shape.width) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int64_t row = first_row + word * 4 + r;
        if (row < shape.rows) held[r] = LoadPacked<T, N>(x + row * stride + column, true);
      }
#pragma unroll
      for (int i = 0; i < N; ++i) inverse[i] = __frcp_rn(scales[column + i]);
    }
    // The words of a tile row are swapped in groups of four, by `lane`: 32 different banks.
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float values[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) values[r] = __fmul_rn(held[r][i], inverse[i]);
      tile[(own + i) * kTileWords + (word ^ lane * 4)] = FourFp8(values);
    }
  }
  __syncthreads();
  constexpr int kChunks = kTile / 16;  // of a tile row
#pragma unroll
  for (int at = thread; at < kTile * kChunks; at += kThreads) {
    const int k = at / kChunks, chunk = at % kChunks;
    const int64_t row = first_row + chunk * 16;
    if (first_column + k >= shape.width || row >= out_width) continue;
    const int swapped = chunk ^ k % kStep / N;
    *reinterpret_cast<uint4*>(out + (first_column + k) * out_stride + row) =
        *reinterpret_cast<const uint4*>(tile + k * kTileWords + swapped * 4);
  }
}

// Any shape, a thread an element of `out`.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    TransposeAnyKernel(Fp8Shape shape, const T* __restrict__ x, int64_t stride,
                       const float* __restrict__ scales, uint8_t* __restrict__ out,
                       int64_t out_width, int64_t out_stride) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t column = index / out_width;
  if (column >= shape.width) return;
  const int64_t row = index - column * out_width;
  const float value = row < shape.rows ? ToFloat(x[row * stride + column]) : 0.0f;
  out[column * out_stride + row] = OneFp8(__fmul_rn(value, __frcp_rn(scales[column])));
}

template <typename T>
cudaError_t QuantizeColumns(Fp8Shape shape, ConstRows x, int64_t out_width, float* partials,
                            const Fp8Output& out, cudaStream_t stream) {
  constexpr int N = kWide<T>;
  const bool wide = shape.width % N == 0 && IsAligned<Vec<T, N>>(x.data) && x.stride % N == 0;
  if (wide) {
    FindScales<T, N>(shape, x, partials, out, stream);
  } else {
    FindScales<T, 1>(shape, x, partials, out, stream);
  }
  if (out_width == 0) return cudaGetLastError();
  const auto* const from = static_cast<const T*>(x.data);
  auto* const to = static_cast<uint8_t*>(out.rows.data);
  const int64_t down = CeilDiv(out_width, kTile);
  if (wide && out_width % 16 == 0 && Fp8IsWide<16>(out.rows) && down <= 65535) {
    const dim3 blocks(static_cast<unsigned>(CeilDiv(shape.width, kTile)),
                      static_cast<unsigned>(down));
    TransposeKernel<<<blocks, kThreads, 0, stream>>>(shape, from, x.stride, out.scale, to,
                                                     out_width, out.rows.stride);
  } else {
    const auto blocks = static_cast<unsigned>(CeilDiv(shape.width * out_width, kThreads));
    TransposeAnyKernel<<<blocks, kThreads, 0, stream>>>(shape, from, x.stride, out.scale, to,
                                                        out_width, out.rows.stride);
  }
  return cudaGetLastError();
}

}  // namespace

int64_t Fp8ColumnPartials(Fp8Shape shape) {
  return std::clamp<int64_t>(CeilDiv(shape.rows, kRowsPerSlice), 1, kMostSlices);
}

cudaError_t LaunchFp8QuantizeColumns(ElementType type, Fp8Shape shape, ConstRows x,
                                     int64_t out_width, float* partials, const Fp8Output& out,
                                     cudaStream_t stream) {
  const auto run =
      type == ElementType::kFloat32 ? QuantizeColumns<float> : QuantizeColumns<__nv_bfloat16>;
  return run(shape, x, out_width, partials, out, stream);
}

}  // namespace sft::engine::cuda
