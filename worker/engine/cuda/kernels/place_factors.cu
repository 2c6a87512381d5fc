// Adapters beside the weight that they adapt: small matrices, one launch for up to eight of them.
#include <algorithm>

#include "worker/engine/cuda/kernels/vec.cuh"

namespace sft::engine::cuda {
namespace {

constexpr int kThreads = 256;

// A thread writes one vector: of [rows, rank] beside the weight, or of [rank, columns] below it.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    PlaceFactorsKernel(FactorShape shape, const __grid_constant__ FactorMembers members,
                       int64_t rank, float scale, T* __restrict__ matrix, int64_t stride) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t beside = shape.rows * (rank / N);
  const bool is_beside = index < beside;
  const int64_t vectors = is_beside ? rank / N : shape.columns / N;
  const int64_t at = is_beside ? index : index - beside;
  const int64_t row = at / vectors;
  const int64_t column = (at - row * vectors) * N;
  if (!is_beside && row >= rank) return;
  // The member whose share of the rank this is.
  const int64_t wanted = is_beside ? column : row;
  int64_t first_rank = 0;
  int m = 0;
  while (wanted >= first_rank + members.member[m].rank) first_rank += members.member[m++].rank;
  const FactorMember& member = members.member[m];
  float values[N] = {};
  if (is_beside) {
    const int64_t from = row - member.first_row;
    if (from >= 0 && from < member.rows) {
      Load(static_cast<const T*>(member.b.data) + from * member.b.stride + column - first_rank,
           values);
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] *= scale;
    }
    Store(matrix + row * stride + shape.columns + shape.first_rank + column, values);
  } else {
    Load(static_cast<const T*>(member.a.data) + (row - first_rank) * member.a.stride + column,
         values);
    Store(matrix + (shape.rows + shape.first_rank + row) * stride + column, values);
  }
}

template <typename T, int N>
cudaError_t PlaceFactors(FactorShape shape, const FactorMembers& members, int64_t rank, float scale,
                         MutableRows matrix, cudaStream_t stream) {
  const int64_t vectors = (shape.rows + shape.columns) * rank / N;
  const auto blocks = static_cast<unsigned>(CeilDiv(vectors, kThreads));
  PlaceFactorsKernel<T, N><<<blocks, kThreads, 0, stream>>>(
      shape, members, rank, scale, static_cast<T*>(matrix.data), matrix.stride);
  return cudaGetLastError();
}

template <typename T>
bool AreWide(const FactorShape& shape, const FactorMembers& members, MutableRows matrix) {
  bool wide = RowsAreWide<T>(matrix.data, matrix.stride) && shape.columns % kWide<T> == 0 &&
              shape.first_rank % kWide<T> == 0;
  for (int m = 0; m < shape.members; ++m) {
    const FactorMember& member = members.member[m];
    wide = wide && member.rank % kWide<T> == 0 && RowsAreWide<T>(member.a.data, member.a.stride) &&
           RowsAreWide<T>(member.b.data, member.b.stride);
  }
  return wide;
}

}  // namespace

cudaError_t LaunchPlaceFactors(ElementType type, FactorShape shape, const FactorMembers& members,
                               float scale, MutableRows matrix, cudaStream_t stream) {
  int64_t rank = 0;
  for (int m = 0; m < shape.members; ++m) rank += members.member[m].rank;
  if (rank == 0 || shape.rows + shape.columns == 0) return cudaSuccess;
  const auto choose = [&]<typename T>(T) {
    return AreWide<T>(shape, members, matrix) ? PlaceFactors<T, kWide<T>> : PlaceFactors<T, 1>;
  };
  const auto run = type == ElementType::kFloat32 ? choose(float()) : choose(__nv_bfloat16());
  return run(shape, members, rank, scale, matrix, stream);
}

}  // namespace sft::engine::cuda
