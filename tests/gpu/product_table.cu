// How fast each algorithm that cuBLAS offers is for the products of a block of Qwen3-32B, held for
// a while, and at what power: a Hopper GPU is bound by its power there, not by its peak.
//
//   . deploy/gpu/torch_env.sh                        (where CUDA's libraries are)
//   sft_gpu_product_table [TOKENS [SECONDS [TAKEN]]]   (8192 tokens, 0.2 s an algorithm, 0 taken)
//
// TAKEN: so many multiprocessors copy memory meanwhile, as collectives would; the algorithms are
// those that cuBLAS offers for the rest of them, and for all.
//
// Values are normal; weights are what 4 bits leave of them (NF4, blocks of 64). Rows are apart as
// in the engine, with room for adapters of rank 16.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

using Bf16 = __nv_bfloat16;

void Check(int code, const char* what) {
  if (code == 0) return;
  std::fprintf(stderr, "sft_gpu_product_table: %s failed with %d\n", what, code);
  std::exit(1);
}

__constant__ float kLevels[16] = {-1.0f,        -0.6961928f,  -0.52507305f, -0.39491749f,
                                  -0.28444138f, -0.18477343f, -0.09105003f, 0.0f,
                                  0.0795803f,   0.1609302f,   0.2461123f,   0.33791524f,
                                  0.44070983f,  0.562617f,    0.72295684f,  1.0f};

__device__ uint32_t Hash(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}
__device__ float Uniform(uint32_t x) { return static_cast<float>(Hash(x) >> 8) / 16777216.0f; }
__device__ float Normal(uint32_t i, uint32_t seed) {
  return sqrtf(-2.0f * logf(Uniform(2 * i + seed) + 1e-7f)) *
         cospif(2.0f * Uniform(2 * i + 1 + seed));
}

// `scale` times normal values; `quantised`: the nearest of 16 levels, of a largest value a block.
__global__ void Fill(Bf16* to, int64_t count, uint32_t seed, float scale, bool quantised) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += stride) {
    float value = Normal(static_cast<uint32_t>(i), seed);
    if (quantised) {
      constexpr float kLargest = 2.4f;  // of 64 normal values
      float nearest = 0.0f;
      for (const float level : kLevels) {
        if (fabsf(value / kLargest - level) < fabsf(value / kLargest - nearest)) nearest = level;
      }
      value = nearest * kLargest * (0.9f + 0.2f * Uniform(static_cast<uint32_t>(i / 64) + seed));
    }
    to[i] = __float2bfloat16(value * scale);
  }
}

// Joules since the driver was loaded; 0 without NVML.
class EnergyMeter {
 public:
  EnergyMeter() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == nullptr) return;
    const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    const auto find = reinterpret_cast<int (*)(unsigned, void**)>(
        dlsym(library, "nvmlDeviceGetHandleByIndex_v2"));
    if (init() != 0 || find(0, &device_) != 0) return;
    read_ = reinterpret_cast<int (*)(void*, unsigned long long*)>(
        dlsym(library, "nvmlDeviceGetTotalEnergyConsumption"));
  }
  double Read() const {
    unsigned long long millijoules = 0;
    if (read_ != nullptr) read_(device_, &millijoules);
    return static_cast<double>(millijoules) / 1e3;
  }

 private:
  void* device_ = nullptr;
  int (*read_)(void*, unsigned long long*) = nullptr;
};

// Copies within `region`, a part for each block, until *stop; *bytes: what all blocks copied.
__global__ void __launch_bounds__(640, 1)
    CopyUntil(const int* stop, uint4* region, int64_t part, unsigned long long* bytes) {
  constexpr int64_t kStep = 640 * 8;
  const int64_t half = part / 2;
  uint4* const mine = region + part * blockIdx.x;
  unsigned long long copied = 0;
  int64_t at = 0;
  for (;;) {
    __shared__ int over;
    if (threadIdx.x == 0) over = *static_cast<const volatile int*>(stop);
    __syncthreads();
    if (over != 0) break;
    for (int turn = 0; turn < 64; ++turn) {
      uint4 values[8];
      for (int i = 0; i < 8; ++i) values[i] = __ldcg(mine + at + i * 640 + threadIdx.x);
      for (int i = 0; i < 8; ++i) __stcg(mine + half + at + i * 640 + threadIdx.x, values[i]);
      copied += kStep * sizeof(uint4);
      at = (at + kStep) % (half - kStep);
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) atomicAdd(bytes, copied);
}

// Takes multiprocessors from Begin to End.
class Neighbour {
 public:
  explicit Neighbour(int taken) : taken_(taken) {
    if (taken == 0) return;
    Check(cudaMalloc(reinterpret_cast<void**>(&region_), taken * kPart * sizeof(uint4)),
          "a region");
    Check(cudaMalloc(reinterpret_cast<void**>(&stop_), sizeof *stop_), "a flag");
    Check(cudaMalloc(reinterpret_cast<void**>(&bytes_), sizeof *bytes_), "a sum");
    Check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "a stream");
    Check(cudaStreamCreateWithFlags(&flags_, cudaStreamNonBlocking), "a stream");
    Check(cudaEventCreate(&begin_), "an event");
    Check(cudaEventCreate(&end_), "an event");
    // No product has room beside it on a multiprocessor, as none has beside a collective.
    Check(cudaFuncSetAttribute(CopyUntil, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
          "shared memory");
  }

  int taken() const { return taken_; }

  void Begin() {
    if (taken_ == 0) return;
    Check(cudaMemsetAsync(stop_, 0, sizeof *stop_, copies_), "a flag");
    Check(cudaMemsetAsync(bytes_, 0, sizeof *bytes_, copies_), "a sum");
    Check(cudaEventRecord(begin_, copies_), "an event");
    CopyUntil<<<taken_, 640, kShared, copies_>>>(stop_, region_, kPart, bytes_);
    Check(cudaGetLastError(), "the copies' start");
    Check(cudaEventRecord(end_, copies_), "an event");
  }

  // GB/s that were read, and as many written.
  double End() {
    if (taken_ == 0) return 0;
    Check(cudaMemsetAsync(stop_, 1, sizeof *stop_, flags_), "a flag");
    Check(cudaDeviceSynchronize(), "the copies");
    unsigned long long bytes = 0;
    Check(cudaMemcpy(&bytes, bytes_, sizeof bytes, cudaMemcpyDeviceToHost), "a sum");
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin_, end_), "a time");
    return static_cast<double>(bytes) / milliseconds / 1e6;
  }

 private:
  static constexpr int64_t kPart = int64_t{4} << 20;  // of uint4: 64 MiB
  static constexpr int kShared = 100 << 10;
  int taken_;
  uint4* region_ = nullptr;
  int* stop_ = nullptr;
  unsigned long long* bytes_ = nullptr;
  cudaStream_t copies_{}, flags_{};
  cudaEvent_t begin_{}, end_{};
};

// out [m, n] = a [m, k] b [k, n], row major; `a_turned`: a is stored as [k, m]; b_turned likewise.
struct Product {
  const char* name;
  int64_t m, n, k;
  int64_t ld_a, ld_b, ld_out;
  bool a_turned, b_turned, b_is_weight;
  float beta;  // 1: added to what is there
};

struct Memory {
  Bf16 *rows, *other_rows, *weights, *out;
  void* workspace;
};
constexpr size_t kWorkspace = size_t{32} << 20;
constexpr int kMostAlgorithms = 40;

struct Measured {
  double tflops, watts, copied;
  int index, tile, cluster;
};

cublasLtMatrixLayout_t Layout(int64_t rows, int64_t columns, int64_t ld) {
  cublasLtMatrixLayout_t layout;
  Check(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, rows, columns, ld), "a layout");
  return layout;
}

// Algorithms for `target` multiprocessors, 0 for all, by rate, the fastest first.
std::vector<Measured> Measure(cublasLtHandle_t handle, const Product& p, const Memory& memory,
                              double seconds, const EnergyMeter& energy, Neighbour& neighbour,
                              int32_t target) {
  cublasLtMatmulDesc_t matmul;
  Check(cublasLtMatmulDescCreate(&matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a product");
  // Column major: out^T = b^T a^T.
  const cublasOperation_t op_b = p.b_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t op_a = p.a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
  Check(cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_TRANSA, &op_b, sizeof op_b),
        "b");
  Check(cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_TRANSB, &op_a, sizeof op_a),
        "a");
  Check(cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &target,
                                       sizeof target),
        "multiprocessors");
  const auto b = p.b_turned ? Layout(p.k, p.n, p.ld_b) : Layout(p.n, p.k, p.ld_b);
  const auto a = p.a_turned ? Layout(p.m, p.k, p.ld_a) : Layout(p.k, p.m, p.ld_a);
  const auto out = Layout(p.n, p.m, p.ld_out);
  cublasLtMatmulPreference_t preference;
  Check(cublasLtMatmulPreferenceCreate(&preference), "a preference");
  const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  Check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &kWorkspace, sizeof kWorkspace),
        "a preference");
  Check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                             &reduction, sizeof reduction),
        "a preference");
  std::vector<cublasLtMatmulHeuristicResult_t> found(kMostAlgorithms);
  int count = 0;
  Check(cublasLtMatmulAlgoGetHeuristic(handle, matmul, b, a, out, out, preference, kMostAlgorithms,
                                       found.data(), &count),
        "the choice");

  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin), "an event");
  Check(cudaEventCreate(&end), "an event");
  const float alpha = 1.0f;
  const Bf16* const b_values = p.b_is_weight ? memory.weights : memory.other_rows;
  const double operations =
      2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  const double once = operations / 650e12;
  std::vector<Measured> measured;
  for (int i = 0; i < count; ++i) {
    const auto run = [&](int times) {
      int code = 0;
      for (int j = 0; j < times && code == 0; ++j) {
        code = cublasLtMatmul(handle, matmul, &alpha, b_values, b, memory.rows, a, &p.beta,
                              memory.out, out, memory.out, out, &found[i].algo, memory.workspace,
                              kWorkspace, nullptr);
      }
      return code;
    };
    // A kernel is loaded when it is first launched, which waits for what runs.
    if (run(2) != 0) continue;
    Check(cudaStreamSynchronize(nullptr), "a product");
    neighbour.Begin();
    Check(run(std::max(2, static_cast<int>(0.3 * seconds / once))), "a product");
    Check(cudaStreamSynchronize(nullptr), "a product");
    const int times = std::max(2, static_cast<int>(seconds / once));
    const double before = energy.Read();
    Check(cudaEventRecord(begin), "an event");
    Check(run(times), "a product");
    Check(cudaEventRecord(end), "an event");
    Check(cudaStreamSynchronize(nullptr), "a product");
    const double joules = energy.Read() - before;
    const double copied = neighbour.End();
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin, end), "a time");
    Measured& result = measured.emplace_back();
    result = {
        operations * times / milliseconds / 1e9, joules / milliseconds * 1e3, copied, i, 0, 0};
    uint16_t cluster = 0;
    cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &result.tile,
                                         sizeof result.tile, nullptr);
    cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID,
                                         &cluster, sizeof cluster, nullptr);
    result.cluster = cluster;
  }
  std::sort(measured.begin(), measured.end(),
            [](const Measured& x, const Measured& y) { return x.tflops > y.tflops; });
  return measured;
}

void PrintTable(cublasLtHandle_t handle, const std::vector<Product>& products, const Memory& memory,
                double seconds, const EnergyMeter& energy, Neighbour& neighbour, int target) {
  std::printf("%d multiprocessors taken, algorithms for %s%.0d\n", neighbour.taken(),
              target == 0 ? "all" : "", target);
  double first_time = 0, best_time = 0;
  for (const Product& p : products) {
    const std::vector<Measured> measured =
        Measure(handle, p, memory, seconds, energy, neighbour, target);
    const auto first = std::find_if(measured.begin(), measured.end(),
                                    [](const Measured& x) { return x.index == 0; });
    if (first == measured.end()) continue;
    const double work =
        static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
    first_time += work / first->tflops;
    best_time += work / measured[0].tflops;
    std::printf("%s [%ld x %ld x %ld]: the first %.0f, the best %.0f TFLOP/s (%+.1f %%)\n", p.name,
                static_cast<long>(p.m), static_cast<long>(p.k), static_cast<long>(p.n),
                first->tflops, measured[0].tflops, (measured[0].tflops / first->tflops - 1) * 100);
    for (const Measured& each : measured) {
      std::printf("  %4.0f TFLOP/s %4.0f W  number %d, tile %d, cluster %d", each.tflops,
                  each.watts, each.index, each.tile, each.cluster);
      std::printf(neighbour.taken() > 0 ? "; copies %.0f GB/s\n" : "\n", each.copied);
    }
    std::fflush(stdout);
  }
  std::printf("all: %.1f %% less time with the best of each\n", (1 - best_time / first_time) * 100);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t t = argc > 1 ? std::atoll(argv[1]) : 8192;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0.2;
  const int taken = argc > 3 ? std::atoi(argv[3]) : 0;
  if (t < 64 || seconds <= 0 || taken < 0 || taken > 64) {
    std::fprintf(stderr,
                 "usage: sft_gpu_product_table [TOKENS, at least 64 [SECONDS [TAKEN, 0 to 64]]]\n");
    return 2;
  }
  constexpr int64_t kHidden = 5120, kQuery = 8192, kQkv = 10240, kGateUp = 51200, kUp = 25600;
  const std::vector<Product> products = {
      {"qkv, forward", t, kQkv, kHidden + 48, kHidden + 48, kHidden + 48, kQkv + 48, false, true,
       true, 0},
      {"output, forward", t, kHidden, kQuery + 16, kQuery + 16, kQuery + 16, kHidden, false, true,
       true, 1},
      {"gate and up, forward", t, kGateUp, kHidden + 32, kHidden + 32, kHidden + 32, kGateUp + 32,
       false, true, true, 0},
      {"down, forward", t, kHidden, kUp + 16, kUp + 16, kUp + 16, kHidden, false, true, true, 1},
      {"qkv, input's gradient", t, kHidden, kQkv + 48, kQkv + 48, kHidden + 48, kHidden, false,
       false, true, 0},
      {"output, input's gradient", t, kQuery, kHidden + 16, kHidden + 16, kQuery + 16, kQuery,
       false, false, true, 0},
      {"gate and up, input's gradient", t, kHidden, kGateUp + 32, kGateUp + 32, kHidden + 32,
       kHidden, false, false, true, 0},
      {"down, input's gradient", t, kUp, kHidden + 16, kHidden + 16, kUp + 16, kUp, false, false,
       true, 0},
      {"qkv, weight's gradient", kQkv, kHidden, t, kQkv, kHidden, kHidden, true, false, false, 0},
      {"output, weight's gradient", kHidden, kQuery, t, kHidden, kQuery, kQuery, true, false, false,
       0},
      {"gate and up, weight's gradient", kGateUp, kHidden, t, kGateUp, kHidden, kHidden, true,
       false, false, 0},
      {"down, weight's gradient", kHidden, kUp, t, kHidden, kUp, kUp, true, false, false, 0}};

  Memory memory{};
  const int64_t rows = std::max<int64_t>(t, kHidden + 64) * (kGateUp + 64),
                weights = (kGateUp + 64) * (kHidden + 64);
  for (Bf16** each : {&memory.rows, &memory.other_rows, &memory.out}) {
    Check(cudaMalloc(reinterpret_cast<void**>(each), rows * sizeof(Bf16)), "memory for rows");
    Fill<<<2048, 256>>>(*each, rows, 1 + static_cast<uint32_t>(each - &memory.rows), 1.0f, false);
  }
  Check(cudaMalloc(reinterpret_cast<void**>(&memory.weights), weights * sizeof(Bf16)),
        "memory for weights");
  Fill<<<2048, 256>>>(memory.weights, weights, 77, 0.02f, true);
  Check(cudaMalloc(&memory.workspace, kWorkspace), "a workspace");
  Check(cudaDeviceSynchronize(), "the values");

  cublasLtHandle_t handle;
  Check(cublasLtCreate(&handle), "cuBLAS");
  const EnergyMeter energy;
  std::printf("cuBLASLt %zu, %ld tokens\n", cublasLtGetVersion(), static_cast<long>(t));
  Neighbour neighbour(taken);
  int all = 0;
  Check(cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, 0), "the device");
  PrintTable(handle, products, memory, seconds, energy, neighbour, 0);
  if (taken > 0) PrintTable(handle, products, memory, seconds, energy, neighbour, all - taken);
  return 0;
}
