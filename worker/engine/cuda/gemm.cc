// Matrix products through cuBLASLt: what ATen's mm lacks is products of bf16 that are added to fp32
// sums or to another matrix in one pass.
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "common/base/mutex.h"
#include "worker/engine/cuda/launch_scope.h"
#include "worker/engine/cuda/ops.h"
#include "worker/engine/kernels/rows.h"

namespace sft::engine::cuda {

namespace {

using at::Tensor;

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // cuBLAS's advice for Hopper

void Check(cublasStatus_t status, const char* what) {
  TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS, "Gemm: ", what,
              " failed: ", cublasLtGetStatusString(status));
}

template <typename T, cublasStatus_t (*Destroy)(T)>
struct Deleter {
  using pointer = T;
  void operator()(T object) const { Destroy(object); }
};
using MatmulDesc = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>,
                                   Deleter<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>,
                               Deleter<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using Preference =
    std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                    Deleter<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;

cudaDataType_t CudaType(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return CUDA_R_32F;
    case at::kBFloat16:
      return CUDA_R_16BF;
    case at::kFloat8_e4m3fn:
      return CUDA_R_8F_E4M3;
    default:
      TORCH_CHECK(false, "Gemm: ", type, " is none of fp32, bf16 and float8_e4m3fn");
  }
}

// A matrix as cuBLAS sees it: column major. `flipped`: the tensor's rows are its columns.
struct Operand {
  const void* data = nullptr;
  int64_t ld = 0;
  bool flipped = false;
};

Operand OperandOf(const Tensor& matrix, const char* name) {
  const int64_t rows = matrix.size(0), columns = matrix.size(1);
  if (matrix.stride(1) == 1 || columns == 1) {
    return {matrix.const_data_ptr(), std::max(matrix.stride(0), columns), false};
  }
  TORCH_CHECK(matrix.stride(0) == 1, "Gemm: neither dimension of ", name, " is dense: strides ",
              matrix.strides());
  return {matrix.const_data_ptr(), std::max(matrix.stride(1), rows), true};
}

// Bytes that the address is a multiple of, up to 256.
uint32_t Alignment(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return static_cast<uint32_t>(address == 0 ? 256 : std::min<uintptr_t>(256, address & -address));
}

// All that the choice of an algorithm depends on.
struct Problem {
  int64_t device = 0, m = 0, n = 0, k = 0, ld_a = 0, ld_b = 0, ld_c = 0, ld_out = 0;
  int64_t in_type = 0, out_type = 0, flips = 0, reads_c = 0, alignment = 0, fast_sums = 0;
  int64_t adds_bias = 0;
  auto operator<=>(const Problem&) const = default;
};

struct Descriptors {
  MatmulDesc matmul;
  Layout a, b, c, out;
};

Layout MakeLayout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t ld, bool flipped) {
  cublasLtMatrixLayout_t layout = nullptr;
  Check(cublasLtMatrixLayoutCreate(&layout, type, flipped ? columns : rows,
                                   flipped ? rows : columns, ld),
        "a matrix layout");
  return Layout(layout);
}

// out^T [n, m] = b^T [n, k] a^T [k, m], column major.
Descriptors Describe(const Problem& problem, const Operand& a, const Operand& b) {
  Descriptors d;
  const auto in = static_cast<cudaDataType_t>(problem.in_type);
  const auto out = static_cast<cudaDataType_t>(problem.out_type);
  cublasLtMatmulDesc_t matmul = nullptr;
  Check(cublasLtMatmulDescCreate(&matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a product");
  d.matmul.reset(matmul);
  const cublasOperation_t op_b = b.flipped ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t op_a = a.flipped ? CUBLAS_OP_T : CUBLAS_OP_N;
  Check(cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_TRANSA, &op_b, sizeof op_b),
        "a product");
  Check(cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_TRANSB, &op_a, sizeof op_a),
        "a product");
  if (in == CUDA_R_8F_E4M3) {
    const cublasLtMatmulMatrixScale_t by_row = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    for (const auto mode : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE}) {
      Check(cublasLtMatmulDescSetAttribute(matmul, mode, &by_row, sizeof by_row), "a scale mode");
    }
    const auto fast = static_cast<int8_t>(problem.fast_sums);
    Check(
        cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast),
        "the precision of sums");
  }
  if (problem.adds_bias != 0) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    Check(cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                         sizeof epilogue),
          "a bias");
  }
  d.b = MakeLayout(in, problem.n, problem.k, problem.ld_b, b.flipped);
  d.a = MakeLayout(in, problem.k, problem.m, problem.ld_a, a.flipped);
  d.c = MakeLayout(out, problem.n, problem.m, problem.ld_c, false);
  d.out = MakeLayout(out, problem.n, problem.m, problem.ld_out, false);
  return d;
}

// None where cuBLAS has no algorithm that adds a bias to this product.
std::optional<cublasLtMatmulAlgo_t> ChooseAlgorithm(cublasLtHandle_t handle, const Problem& problem,
                                                    const Descriptors& d) {
  cublasLtMatmulPreference_t raw = nullptr;
  Check(cublasLtMatmulPreferenceCreate(&raw), "a preference");
  const Preference preference(raw);
  const auto set = [raw](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    Check(cublasLtMatmulPreferenceSetAttribute(raw, attribute, &value, sizeof value),
          "a preference");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  // Partial sums meet in fp32 and in a fixed order.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  const auto alignment = static_cast<uint32_t>(problem.alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, d.matmul.get(), d.b.get(), d.a.get(), d.c.get(),
                                     d.out.get(), raw, 1, &result, &found);
  if (problem.adds_bias != 0 && (status == CUBLAS_STATUS_NOT_SUPPORTED || found == 0)) return {};
  Check(status, "the choice of an algorithm");
  TORCH_CHECK(found > 0, "Gemm: cuBLAS has no algorithm for ", problem.m, " x ", problem.k,
              " times ", problem.k, " x ", problem.n);
  return result.algo;
}

// The algorithm of each problem, chosen once: the same in every run on one kind of GPU.
class AlgorithmCache {
 public:
  std::optional<cublasLtMatmulAlgo_t> Get(cublasLtHandle_t handle, const Problem& problem,
                                          const Descriptors& d) SFT_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const auto found = algorithms_.find(problem);
    if (found != algorithms_.end()) return found->second;
    if (algorithms_.size() >= kMost) algorithms_.clear();
    return algorithms_.emplace(problem, ChooseAlgorithm(handle, problem, d)).first->second;
  }

 private:
  // Experts get another number of rows each time.
  static constexpr size_t kMost = 16384;

  Mutex mutex_;
  std::map<Problem, std::optional<cublasLtMatmulAlgo_t>> algorithms_ SFT_GUARDED_BY(mutex_);
};

AlgorithmCache& Algorithms() {
  static AlgorithmCache& cache = *std::make_unique<AlgorithmCache>().release();
  return cache;
}

void CheckProduct(const Tensor& out, const Tensor& a, const Tensor& b) {
  TORCH_CHECK(out.dim() == 2 && a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) &&
                  out.size(0) == a.size(0) && out.size(1) == b.size(1),
              "Gemm: ", a.sizes(), " times ", b.sizes(), " is not ", out.sizes());
  TORCH_CHECK(a.scalar_type() == b.scalar_type() &&
                  (out.scalar_type() == a.scalar_type() || out.scalar_type() == at::kFloat),
              "Gemm: ", a.scalar_type(), " times ", b.scalar_type(), " into ", out.scalar_type());
  TORCH_CHECK(out.stride(1) == 1 || out.size(1) == 1, "Gemm: rows of the result are not dense");
}

// out = alpha a b + beta c (+ bias), with a scale for each row of a and each column of b in FP8.
struct Product {
  Tensor& out;
  const Tensor& a;
  const Tensor& b;
  const Tensor& c;
  double alpha = 1.0;
  double beta = 0.0;
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
  bool fast_sums = false;
  const Tensor* bias = nullptr;
};

Problem ProblemOf(const Product& product, const Operand& a, const Operand& b) {
  const Tensor& out = product.out;
  Problem problem;
  problem.device = out.device().index();
  problem.m = out.size(0);
  problem.n = out.size(1);
  problem.k = product.a.size(1);
  problem.ld_a = a.ld;
  problem.ld_b = b.ld;
  problem.ld_c = std::max(product.c.stride(0), out.size(1));
  problem.ld_out = std::max(out.stride(0), out.size(1));
  problem.in_type = CudaType(product.a.scalar_type());
  problem.out_type = CudaType(out.scalar_type());
  problem.flips = (a.flipped ? 1 : 0) + (b.flipped ? 2 : 0);
  problem.reads_c = product.beta != 0.0;
  problem.fast_sums = product.fast_sums;
  problem.adds_bias = product.bias != nullptr;
  problem.alignment =
      std::min({Alignment(a.data), Alignment(b.data), Alignment(product.c.const_data_ptr()),
                Alignment(out.const_data_ptr())});
  return problem;
}

void SetPointers(const Product& product, const Descriptors& d) {
  if (product.bias != nullptr) {
    const void* bias = product.bias->const_data_ptr();
    Check(cublasLtMatmulDescSetAttribute(d.matmul.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                         sizeof bias),
          "a bias");
  }
  if (product.a_scale == nullptr) return;
  // cuBLAS's first operand is b.
  Check(cublasLtMatmulDescSetAttribute(d.matmul.get(), CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                                       &product.b_scale, sizeof product.b_scale),
        "a scale");
  Check(cublasLtMatmulDescSetAttribute(d.matmul.get(), CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                       &product.a_scale, sizeof product.a_scale),
        "a scale");
}

void Run(const Product& product) {
  Tensor& out = product.out;
  if (out.numel() == 0) return;
  if (product.a.size(1) == 0) {
    out.mul_(product.beta);
    return;
  }
  const LaunchScope scope(out);
  const Operand a = OperandOf(product.a, "a"), b = OperandOf(product.b, "b");
  const Problem problem = ProblemOf(product, a, b);
  const Descriptors d = Describe(problem, a, b);
  SetPointers(product, d);
  const cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
  const std::optional<cublasLtMatmulAlgo_t> algorithm = Algorithms().Get(handle, problem, d);
  if (!algorithm) {
    Product without = product;
    without.bias = nullptr;
    Run(without);
    AddBias(out, *product.bias);
    return;
  }
  const c10::DataPtr workspace = c10::cuda::CUDACachingAllocator::get()->allocate(kWorkspaceBytes);
  const float alpha = static_cast<float>(product.alpha), beta = static_cast<float>(product.beta);
  Check(cublasLtMatmul(handle, d.matmul.get(), &alpha, b.data, d.b.get(), a.data, d.a.get(), &beta,
                       product.c.const_data_ptr(), d.c.get(), out.mutable_data_ptr(), d.out.get(),
                       &*algorithm, workspace.get(), kWorkspaceBytes, scope.stream()),
        "a product");
}

void CheckAddend(const Tensor& out, const Tensor& addend) {
  TORCH_CHECK(addend.sizes() == out.sizes() && addend.scalar_type() == out.scalar_type() &&
                  addend.stride(1) == 1,
              "GemmAdd: the addend is ", addend.scalar_type(), addend.sizes());
}

}  // namespace

void Gemm(Tensor& out, const Tensor& a, const Tensor& b, double alpha, double beta) {
  CheckProduct(out, a, b);
  Run({.out = out, .a = a, .b = b, .c = out, .alpha = alpha, .beta = beta});
}

void GemmAdd(Tensor& out, const Tensor& a, const Tensor& b, const Tensor& addend,
             const Tensor& bias) {
  CheckProduct(out, a, b);
  TORCH_CHECK(a.size(1) > 0, "GemmAdd: a has no columns");
  if (addend.defined()) CheckAddend(out, addend);
  if (bias.defined()) CheckVector(bias, out.size(1), out, "GemmAdd: bias");
  // cuBLAS may read it 16 bytes at a time.
  const bool within = bias.defined() && Alignment(bias.const_data_ptr()) >= 16;
  Run({.out = out,
       .a = a,
       .b = b,
       .c = addend.defined() ? addend : out,
       .beta = addend.defined() ? 1.0 : 0.0,
       .bias = within ? &bias : nullptr});
  if (bias.defined() && !within) AddBias(out, bias);
}

void Fp8Gemm(Tensor& out, const Tensor& a, const Tensor& a_scale, const Tensor& b,
             const Tensor& b_scale, const Tensor& addend, bool fast_sums) {
  TORCH_CHECK(a.scalar_type() == at::kFloat8_e4m3fn && b.scalar_type() == at::kFloat8_e4m3fn &&
                  a.stride(1) == 1 && b.stride(1) == 1 && a.size(1) == b.size(1) &&
                  out.size(0) == a.size(0) && out.size(1) == b.size(0) && out.stride(1) == 1,
              "Fp8Gemm: ", a.scalar_type(), a.sizes(), " times the transpose of ", b.scalar_type(),
              b.sizes(), " is not ", out.sizes());
  TORCH_CHECK(a_scale.scalar_type() == at::kFloat && b_scale.scalar_type() == at::kFloat &&
                  a_scale.is_contiguous() && b_scale.is_contiguous() &&
                  a_scale.numel() == a.size(0) && b_scale.numel() == b.size(0),
              "Fp8Gemm: one fp32 scale a row is needed");
  if (addend.defined()) CheckAddend(out, addend);
  Run({.out = out,
       .a = a,
       .b = b.t(),
       .c = addend.defined() ? addend : out,
       .beta = addend.defined() ? 1.0 : 0.0,
       .a_scale = a_scale.const_data_ptr<float>(),
       .b_scale = b_scale.const_data_ptr<float>(),
       .fast_sums = fast_sums});
}

}  // namespace sft::engine::cuda
